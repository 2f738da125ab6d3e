"""Clients of Slurm, unmodified, through spotsurfer's Slurm commands, while all machines are reclaimed every minute."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients.bench import CLIENTS, HOST, MACHINE, Bench, bench, jobs_of, moves, results, workflow
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
        more = ["--default-resources", "mem_mb=600", "runtime=60"]
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
