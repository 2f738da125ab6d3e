"""Machines that are kept: the next job of the same owner starts on one that runs, and finds nothing of the one before."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest
from spotsurfer_providers.local import manual_control
from support.fleet import MARKS, Fleet, fleet, with_kept
from support.patience import FACTOR

pytestmark = MARKS
HOSTILE = """\
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv("/bin/sleep", ["left-behind", "1000"])
    os._exit(0)
for folder in ("/tmp", "/dev/shm", os.path.expanduser("~"), "."):
    open(os.path.join(folder, "left-behind"), "w").write("secret")
"""
CURIOUS = """\
import os
found = []
for folder in ("/tmp", "/dev/shm", os.path.expanduser("~"), ".", "/proc"):
    found += [os.path.join(folder, name) for name in os.listdir(folder) if "left" in name]
for pid in filter(str.isdigit, os.listdir("/proc")):
    found += [pid for word in open(f"/proc/{pid}/cmdline").read().split("\\0") if "left" in word]
print("found", found, len([p for p in os.listdir("/proc") if p.isdigit()]) < 10)
"""


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One machine at most, which is kept."""
    with fleet(tmp_path_factory.mktemp("reuse"), config=with_kept(1)) as made:
        yield made


def started_after(world: Fleet, job: str) -> float:
    """Seconds from the plan of the job's first attempt until its command was seen to run."""
    moments = world.moments(job)
    planned = next(m for m in moments if m["kind"] == "planned")
    runs = next(m for m in moments if m["kind"] == "attempt" and m["data"]["to"] == "running")
    return (datetime.fromisoformat(runs["at"]) - datetime.fromisoformat(planned["at"])).total_seconds()


def boxes(world: Fleet, jobs: list[str]) -> Counter[str]:
    """How many attempts each box had."""
    return Counter(a["instance"] for job in jobs for a in world.show(job)["attempts"])


@pytest.mark.alone
def test_the_next_job_takes_the_machine_at_once(one: Fleet) -> None:
    jobs = [one.submit(20, name=f"short-{i}") for i in range(3)]
    for job in jobs:
        one.wait_end(job)
        one.assert_identical(job)
    assert len(boxes(one, jobs)) == 1
    assert started_after(one, jobs[-1]) <= 2 * FACTOR, "the first two began on a machine that booted"


def test_nothing_of_a_job_is_left_for_the_next(one: Fleet) -> None:
    plain = {"inputs": ["program.py"], "outputs": [], "cpus": 2}
    hostile = one.submit(1, name="hostile", text=HOSTILE, **plain)
    curious = one.submit(1, name="curious", text=CURIOUS, **plain)
    assert [one.wait_end(job)["state"] for job in (hostile, curious)] == ["succeeded", "succeeded"]
    assert len(boxes(one, [hostile, curious])) == 1
    assert one.output(curious) == "found [] True\n"


def test_the_machine_is_ended_when_the_queue_is_dry(one: Fleet) -> None:
    job = one.submit(5)
    one.wait_end(job)
    one.wait(lambda: not manual_control.living(one.data), "the end of all machines", 20)


def test_two_share_a_machine_and_go_on_elsewhere_when_it_is_taken(tmp_path: Path) -> None:
    with fleet(tmp_path, config=with_kept(2)) as world:
        first = world.submit(600, name="first")
        world.wait_line(first, 5)
        filling = world.submit(400, name="filling", cpus=2)  # has the other machine for itself
        world.wait_line(filling, 5)
        second = world.submit(400, name="second")  # there is no room for one more
        world.wait_line(second, 5)
        shared = world.box(first, 1)
        assert world.box(second, 1) == shared
        assert all(world.attempt(job, "running") for job in (first, second)), "they do not run there at a time"
        manual_control.reclaim(world.data, shared, 30)
        for job in (first, second, filling):
            world.wait_end(job, 240)
            world.assert_identical(job)
            world.assert_one_owner(job)
        moved = [world.show(job)["moves"] for job in (first, second)]
        assert moved == [1, 1], "both heard the notice, and went on from their checkpoints"


@pytest.mark.slow
def test_fifty_jobs_of_one_second_on_four_machines(tmp_path: Path) -> None:
    with fleet(tmp_path, config=with_kept(4)) as world:
        began = time.monotonic()
        text = "import time; time.sleep(1)"
        jobs = [world.submit(1, name=f"one-{i}", text=text, outputs=[], cpus=2) for i in range(50)]

        def over() -> bool:
            with suppress(KeyError):
                return all(j["state"] == "succeeded" for j in world.client.get("/v1/jobs")["jobs"])
            return False

        world.wait(over, "the end of all", 240)
        took = time.monotonic() - began
        assert len(boxes(world, jobs)) <= 4
        print(f"{took:.0f} s, machines {boxes(world, jobs)}, starts {sorted(started_after(world, j) for j in jobs)[::10]}")
        assert took <= 60 * FACTOR
