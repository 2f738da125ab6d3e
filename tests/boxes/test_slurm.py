"""Slurm's commands with a real controller and boxes: a script's folder goes along and comes home, over a reclaim."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsurfer_providers.local import manual_control
from support.fleet import MARKS, PROGRAM, Fleet, expected, fleet

from spotsurfer.slurm.install import install
from spotsurfer.slurm.site import DEFAULT_PARTITIONS

pytestmark = MARKS


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("slurm")) as made:
        yield made


class Shell:
    """Runs commands in a user's folder, with Slurm's programs first on the path."""

    def __init__(self, world: Fleet, folder: Path) -> None:
        self.home, programs = folder / "wf", folder / "bin"
        self.home.mkdir()
        install(programs, DEFAULT_PARTITIONS)
        own = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "XDG_STATE_HOME": str(folder / "state"),
            "SPOTSURFER_URL": world.client.place,
        }
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPOTSURFER", "SLURM"))}
        self.environment = kept | own

    def __call__(self, command: str, code: int = 0) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def shell(world: Fleet, tmp_path: Path) -> Shell:
    return Shell(world, tmp_path)


def test_a_script_runs_in_its_folder_and_its_output_comes_home_over_a_reclaim(world: Fleet, shell: Shell) -> None:
    (shell.home / "program.py").write_text(PROGRAM)
    (shell.home / "job.sh").write_text(
        "#!/bin/bash\n#SBATCH -J chain -o out_%j.txt -e err.txt --mem=400M -t 30\n"
        'echo "job $SLURM_JOB_ID $SLURM_JOB_NAME $PWD $GREETING" >&2\nsrun python3 program.py "$1" 0.05\n'
    )
    number = shell("GREETING='a b' sbatch --parsable job.sh 200").strip()
    assert shell(f"squeue -h -j {number} -o '%i %j %T %P'").split()[:2] == [number, "chain"]
    job = next(b["id"] for b in world.client.get("/v1/brief")["jobs"] if str(b["number"]) == number)
    world.wait_line(job, 20)
    assert shell(f"squeue -h -j {number} -o %T").strip() == "RUNNING"
    manual_control.reclaim(world.data, world.box(job, 1), 20)
    world.wait_end(job)
    world.wait(lambda: shell(f"sacct -n -X -P -j {number} -o State,ExitCode").strip() == "COMPLETED|0:0", "what comes home")
    assert (shell.home / f"out_{number}.txt").read_text().splitlines() == expected(200)
    assert (shell.home / "err.txt").read_text() == f"job {number} chain {shell.home} a b\n"
    assert (shell.home / "result.txt").read_text() == expected(200)[-1].split()[1] + "\n"
    assert shell(f"squeue -h -j {number}") == ""
    assert "JobState=COMPLETED Reason=None" in shell(f"scontrol show job {number}")


def test_wait_failure_and_cancel(world: Fleet, shell: Shell) -> None:
    shell("sbatch --wait -Q -o out.txt --wrap 'echo made > made.txt; exit 3'", code=3)
    assert (shell.home / "made.txt").read_text() == "made\n"
    number = shell("sbatch --parsable --hold --wrap 'sleep 100'").strip()
    assert shell(f"squeue -h -j {number} -o '%t %r'").split() == ["PD", "JobHeldUser"]
    shell(f"scontrol release {number}")
    world.wait(lambda: shell(f"squeue -h -j {number} -o %t").strip() == "R", "its start")
    shell(f"scancel {number}")
    world.wait(lambda: shell(f"sacct -n -X -P -j {number} -o State").startswith("CANCELLED by"), "its end")
    assert shell("srun -Q sh -c 'echo out; exit 4'", code=4) == "out\n"
