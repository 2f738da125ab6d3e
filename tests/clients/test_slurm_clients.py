"""Clients of Slurm, unmodified, through spotsurfer's Slurm commands, while all machines are reclaimed every minute."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from clients.bench import CLIENTS, HOST, MACHINE, SOCKET, Bench, bench, jobs_of, moves, results, workflow
from clients.nextflow_tasks import Nextflow, Task
from support import fleet as fleets

from spotsurfer.slurm.install import install
from spotsurfer.slurm.site import DEFAULT_PARTITIONS

pytestmark = [*fleets.MARKS, pytest.mark.slow, pytest.mark.timeout(3600)]
SCRIPTS = Path(__file__).parent / "scripts"
SLURM = ("sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo", "sacctmgr", "sshare")


@pytest.fixture
def path() -> Iterator[list[Path]]:
    """Our commands for the user. On machines, which have no Slurm, a real one of this host (its tests install it) is hidden."""
    CLIENTS.mkdir(parents=True, exist_ok=True)
    top = Path(tempfile.mkdtemp(prefix="slurm-", dir=CLIENTS))
    install(top / "ours", DEFAULT_PARTITIONS)
    (top / "none").mkdir()
    for name in SLURM:
        (top / "none" / name).write_text("#!/bin/sh\nexit 1\n")
        (top / "none" / name).chmod(0o755)
    yield [top / "ours", top / "none"]
    shutil.rmtree(top)


def moved_and_never_failed(user: Bench) -> None:
    assert user.world is not None
    assert all(job["state"] == "succeeded" and job["failures"] == 0 for job in jobs_of(user.world))
    assert moves(user.world) >= 1


def test_snakemake_through_its_slurm_plugin(tmp_path: Path, path: list[Path]) -> None:
    local = workflow(tmp_path / "local")
    environment = {**os.environ, "PATH": f"{MACHINE}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    words = ["snakemake", "--cores", "2", "--config", "samples=12"]
    subprocess.run(words, cwd=local, env=environment, check=True, capture_output=True)
    folder = workflow(tmp_path / "wf")
    with bench(tmp_path / "bench", folder) as user:
        user.path = path
        more = ["--default-resources", "mem_mb=600", "runtime=60", "--slurm-init-seconds-before-status-checks", "5"]
        done = user.call(["snakemake", "--executor", "slurm", "--jobs", "8", *more, "--config", "samples=12"])
        assert results(folder) == results(local)
        assert "Trying to restart" not in done.stderr
        moved_and_never_failed(user)


def test_submitit(tmp_path: Path, path: list[Path]) -> None:
    """It renames its files after `sbatch` has returned, so the folder is given a second to settle."""
    (tmp_path / "wf").mkdir()
    shutil.copy(SCRIPTS / "submitit_squares.py", tmp_path / "wf")
    with bench(tmp_path / "bench", tmp_path / "wf", 20) as user:
        user.path, user.environment = path, {"SPOTSURFER_SETTLE_SECONDS": "1"}
        done = user.call([str(HOST / "python"), "submitit_squares.py"])
        assert "squares [0, 1, 4, 9, 16, 25]" in done.stdout
        moved_and_never_failed(user)


def test_toil(tmp_path: Path, path: list[Path]) -> None:
    folder = tmp_path / "wf"
    (folder / "work").mkdir(parents=True)
    (folder / "coordination").mkdir()
    shutil.copy(SCRIPTS / "toil_squares.py", folder)
    words = [str(HOST / "python"), "toil_squares.py", f"file:{folder}/store", "--batchSystem", "slurm", "--retryCount", "0"]
    words += ["--workDir", str(folder / "work"), "--coordinationDir", str(folder / "coordination"), "--disableCaching"]
    with bench(tmp_path / "bench", folder, 20) as user:
        user.path = path
        assert "sum 14" in user.call(words).stdout
        moved_and_never_failed(user)


@contextmanager
def tethered(tmp_path: Path, path: list[Path], script: str) -> Iterator[tuple[Bench, list[str]]]:
    """A user, and words that run a script with a port which jobs reach. The host reaches jobs' own ports, wherever they are."""
    folder, end = tmp_path / "wf", str(tmp_path / "tether.sock")
    folder.mkdir()
    shutil.copy(SCRIPTS / script, folder)
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = str(found.getsockname()[1])
    with bench(tmp_path / "bench", folder, 60, 20, socket=Path(end)) as user:
        user.path = path
        words = ["slurm", "tether", "--port", port, "--listen", end, "--address", SOCKET]
        words += ["--to", str(user.folder / "tether" / "join")]
        with user.start([sys.executable, "-m", "spotsurfer", *words]) as running:
            assert running.stdout is not None and running.stdout.readline().startswith("Jobs call")
            yield user, [str(HOST / "python"), script, port]
        assert user.world is not None
        ends = [user.world.wait_end(str(job["id"])) for job in jobs_of(user.world)]  # their client cancels them as it ends
        assert all(job["state"] in ("succeeded", "cancelled") and job["failures"] == 0 for job in ends)
        assert moves(user.world) >= 3


def test_dask_jobqueue_over_a_tether(tmp_path: Path, path: list[Path]) -> None:
    """Workers keep their connections and what they hold: none is lost, so dask does nothing again."""
    with tethered(tmp_path, path, "dask_array.py") as (user, words):
        done = user.call([*words, str(MACHINE / "python")])
        assert "workers 3 lost 0" in done.stdout and "identical" in done.stdout, done.stdout + done.stderr


def test_parsl_over_a_tether(tmp_path: Path, path: list[Path]) -> None:
    with tethered(tmp_path, path, "parsl_squares.py") as (user, words):
        assert f"squares {[n * n for n in range(18)]}" in user.call([*words, str(MACHINE)]).stdout


def test_nextflows_calls(tmp_path: Path, path: list[Path]) -> None:
    """Two tasks, of which the second reads what the first one made: its folder does not hold it, its script names it."""
    root = tmp_path / "wf"
    root.mkdir()
    with bench(tmp_path / "bench", root, 20) as user:
        user.path, user.environment = path, {"SPOTSURFER_HOME": str(root)}
        nextflow = Nextflow(user.whole_environment())
        first = Task("SIMULATE", root / "work" / "aa" / "11", "for i in $(seq 20); do sleep 1; echo $i; done > reads.fq")
        assert list(nextflow.wait({nextflow.submit(first): first}, seconds=300).values()) == [0]
        second = Task("ALIGN", root / "work" / "bb" / "22", "tac in.fq > out.sam", {"in.fq": first.folder / "reads.fq"})
        assert list(nextflow.wait({nextflow.submit(second): second}, seconds=300).values()) == [0]
        assert (second.folder / "out.sam").read_text().split() == [str(i) for i in range(20, 0, -1)]
        moved_and_never_failed(user)
