"""Machines that are kept: the next job of the same owner starts on one that runs, and finds nothing of the one before."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pytest
from support.fleet import CONFIG, MARKS, Fleet, fleet

pytestmark = MARKS
KEPT = CONFIG.replace("instances_max = 12", "instances_max = 1\nidle_seconds = 60")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("reuse"), config=KEPT) as made:
        yield made


def started_after(world: Fleet, job: str) -> float:
    """Seconds from the plan of the job's attempt to the first words of its command."""
    said = {m["kind"]: datetime.fromisoformat(m["at"]) for m in reversed(world.moments(job)) if m["kind"] != "attempt"}
    runs = next(m for m in world.moments(job) if m["kind"] == "attempt" and m["data"]["to"] == "running")
    return (datetime.fromisoformat(runs["at"]) - said["planned"]).total_seconds()


def test_the_next_job_takes_the_machine(world: Fleet) -> None:
    jobs = [world.submit(20, name=f"short-{i}") for i in range(3)]
    ended = [world.wait_end(job) for job in jobs]
    assert len({e["attempts"][0]["instance"] for e in ended}) == 1
    for job in jobs:
        world.assert_identical(job)
    print([started_after(world, job) for job in jobs])
