"""Nextflow's exact calls: its own wrapper script, `sbatch .command.run`, `squeue -o '%i %t'`, `scancel`, on played machines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from clients.nextflow_tasks import Nextflow, Task
from slurm.ours import programs
from slurm.played import Server

from spotsurfer.home.named_paths import home_of


@pytest.fixture
def nextflow(tmp_path: Path) -> Iterator[Nextflow]:
    server = Server(tmp_path / "api.sock")
    try:
        yield Nextflow(programs(tmp_path / "bin", tmp_path / "api.sock") | {"SPOTSURFER_HOME": str(tmp_path / "wf")})
    finally:
        server.close()


def test_a_task_reads_what_another_one_made(nextflow: Nextflow, tmp_path: Path) -> None:
    work = tmp_path / "wf" / "work"
    first = Task("SIMULATE (s 1)", work / "aa" / "11", "echo reads > reads.fq; echo said; echo told >&2", cpus=2, minutes=60)
    assert list(nextflow.wait({nextflow.submit(first): first}).values()) == [0]
    second = Task("ALIGN (s 1)", work / "bb" / "22", "tr a-z A-Z < in.fq > out.sam", {"in.fq": first.folder / "reads.fq"})
    assert list(nextflow.wait({nextflow.submit(second): second}).values()) == [0]
    assert (second.folder / "out.sam").read_text() == "READS\n"
    assert (first.folder / ".command.begin").exists()
    texts = {name: (first.folder / name).read_text() for name in (".command.out", ".command.err", ".command.log")}
    assert texts[".command.out"] == "said\n" and texts[".command.err"] == "told\n"
    assert sorted(texts[".command.log"].splitlines()) == ["said", "told"]


def test_a_task_that_fails_and_one_that_is_killed(nextflow: Nextflow, tmp_path: Path) -> None:
    failing = Task("BAD", tmp_path / "wf" / "work" / "cc" / "33", "exit 7")
    assert list(nextflow.wait({nextflow.submit(failing): failing}).values()) == [7]
    endless = Task("LONG", tmp_path / "wf" / "work" / "dd" / "44", "sleep 1000")
    job = nextflow.submit(endless)

    def kill() -> None:
        if (endless.folder / ".command.begin").exists():
            nextflow.kill(job)

    (code,) = nextflow.wait({job: endless}, kill).values()
    assert code != 0


def test_a_task_takes_along_its_folder_and_what_its_script_names(tmp_path: Path) -> None:
    """The links that it makes on its machine, and those that such files are themselves; not the folders of other tasks."""
    root = tmp_path / "wf"
    (root / "data").mkdir(parents=True)
    (root / "data" / "a.fq").touch()
    (root / "data" / "b[1].fq").touch()
    for name in ("aa/11", "cc/33"):
        (root / "work" / name).mkdir(parents=True)
    (root / "work" / "aa" / "11" / "same.fq").symlink_to(root / "data" / "a.fq")
    staged = {"x.fq": root / "work" / "aa" / "11" / "same.fq", "y.fq": root / "data" / "b[1].fq", "z": Path("/etc/hosts")}
    task = Task("T", root / "work" / "bb" / "22", "true", staged)
    task.write()
    script = (task.folder / ".command.run").read_text().replace("b[1].fq", r"b\[1\].fq")
    home, names = home_of(str(task.folder), script, str(root))
    assert home == str(root)
    assert set(names) == {"work/bb/22", "work/aa/11/same.fq", "data/a.fq", "data/b[[]1].fq"} | {
        f"work/bb/22/{x}" for x in (".command.sh",)
    }


@pytest.mark.parametrize("root", ["", "/elsewhere", "{}"])
def test_without_a_tree_around_it_the_folder_is_all(tmp_path: Path, root: str) -> None:
    assert home_of(str(tmp_path), f"cat {tmp_path}/x", root.format(tmp_path)) == (str(tmp_path), ())
