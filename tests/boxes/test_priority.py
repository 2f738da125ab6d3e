"""Live: a job of high priority takes the only machine, and the low one goes on afterwards as if nothing had been."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

from support.fleet import CONFIG, MARKS, Fleet, fleet

pytestmark = MARKS
TAKES_SECONDS_MAX = 10.0
# Nothing here is about leases: a long one bears slow hosts.
ONE_MACHINE = CONFIG.replace("instances_max = 12", "instances_max = 1").replace("lease_seconds = 6", "lease_seconds = 60")


def took(world: Fleet, job: str) -> float:
    """Seconds from its submission until the other's machine was gone and its own was ordered."""
    ordered = datetime.fromisoformat(world.moments(job, "launched")[0]["at"])
    return (ordered - datetime.fromisoformat(world.show(job)["submitted_at"])).total_seconds()


def test_a_job_of_high_priority_takes_the_only_machine_and_the_low_one_comes_back(tmp_path: Path) -> None:
    with fleet(tmp_path, 600, ONE_MACHINE) as world:
        low = world.submit(500, name="low", priority=-10)
        world.wait_line(low, 40, 180)
        began = time.monotonic()
        high = world.submit(100, name="high", priority=10)
        world.wait_line(high, 0, 120)
        runs, seconds = time.monotonic() - began, took(world, high)
        waiting = world.show(low)
        print(f"its place was taken within {seconds:.1f} s, it ran after {runs:.1f} s; {waiting['phase']}: {waiting['note']}")
        assert seconds < TAKES_SECONDS_MAX
        assert waiting["phase"] == "queued"
        assert waiting["note"].startswith(f"suspended for {high} of higher priority, it comes back by itself")
        assert world.wait_end(high, 180)["moves"] == 0
        ended = world.wait_end(low, 180)
        assert [a["gave_way_to"] for a in ended["attempts"]] == [high, ""]
        assert ended["moves"] == 1
        for job in (low, high):
            world.assert_identical(job)
            world.assert_one_owner(job)
        told = [m["text"] for m in world.moments(low, "asked")]
        assert f"drain: its machine goes to {high} of priority 10; it comes back by itself" in told
