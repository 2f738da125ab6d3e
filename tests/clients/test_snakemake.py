"""Snakemake 9, unmodified, through the executor plug-in: machines are reclaimed, the results are those of a local run."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from clients.bench import MACHINE, bench, jobs_of, moves, results, workflow
from support import fleet as fleets
from support.fleet import Fleet

pytestmark = [*fleets.MARKS, pytest.mark.slow, pytest.mark.timeout(3600)]
SAMPLES = 12


def snakemake(jobs: int, samples: int, *more: str) -> list[str]:
    return [
        "snakemake", "--executor", "spotsurfer", "--jobs", str(jobs), "--spotsurfer-python", str(MACHINE / "python"),
        "--config", f"samples={samples}", *more,
    ]  # fmt: skip


@pytest.fixture
def local(tmp_path: Path) -> dict[str, str]:
    """What a local run makes."""
    folder = workflow(tmp_path / "local")
    environment = {**os.environ, "PATH": f"{MACHINE}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    subprocess.run(
        ["snakemake", "--cores", "2", "--config", f"samples={SAMPLES}"],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
    )
    return results(folder)


def kill_after_first_move(world: Fleet) -> None:
    """The controller dies when a job has moved, and is away for some seconds."""
    world.wait(lambda: moves(world) >= 1, "a job on its second machine", 300.0)
    world.kill_controller()
    time.sleep(5)
    world.start()


@pytest.mark.parametrize(
    ("more", "jobs", "every", "notice"),
    [
        ([], 3 + 4 * SAMPLES, 60, 10),
        (["--groups", "simulate=g", "bwa=g", "sort=g", "call=g"], 3 + SAMPLES, 60, 0),
    ],
    ids=["every-minute", "groups-without-notice"],
)
def test_twelve_samples_while_all_machines_are_reclaimed(
    tmp_path: Path, local: dict[str, str], more: list[str], jobs: int, every: int, notice: int
) -> None:
    """The controller is killed once on the way. No retry is used: Snakemake has none, and each rule is one job."""
    folder = workflow(tmp_path / "wf")
    with bench(tmp_path / "bench", folder, every, notice) as user, ThreadPoolExecutor(1) as beside:
        assert user.world is not None
        accident = beside.submit(kill_after_first_move, user.world)
        done = user.call(snakemake(8, SAMPLES, *more))
        accident.result()
        made = jobs_of(user.world)
        assert {k: v for k, v in results(folder).items() if k in local} == local
        assert "Trying to restart" not in done.stderr
        assert len(made) == jobs, "each rule was submitted once"
        assert all(job["state"] == "succeeded" and job["failures"] == 0 for job in made)
        assert moves(user.world) >= 3


def test_an_interrupt_cancels_what_was_submitted(tmp_path: Path) -> None:
    folder = workflow(tmp_path / "wf")
    with bench(tmp_path / "bench", folder) as user:
        world = user.world
        assert world is not None
        terminal = ["env", "--default-signal=INT"]  # a shell's background commands ignore it, and so may these tests
        with user.start([*terminal, *snakemake(4, 2, "pairs=2000000")]) as running:
            world.wait(lambda: any(j["name"] == "simulate" for j in jobs_of(world)), "jobs of the rule simulate", 120.0)
            running.send_signal(signal.SIGINT)
            assert running.wait(60) != 0
        states = [job["state"] for job in jobs_of(world) if job["name"] == "simulate"]
        world.wait(lambda: {j["state"] for j in jobs_of(world)} <= {"succeeded", "cancelled"}, "the end of all jobs")
        assert states and "cancelled" in {j["state"] for j in jobs_of(world)}
