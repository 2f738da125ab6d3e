"""Live: a job of high priority takes the only machine, and the low one goes on afterwards as if nothing had been."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from support.fleet import CONFIG, MARKS, Fleet, fleet

from spotsurfer.ports.clock import SystemClock

pytestmark = MARKS
TAKES_SECONDS_MAX = 10.0
# Nothing here is about leases: a long one bears slow hosts. The controller looks as seldom as it does by default.
ONE_MACHINE = CONFIG.replace("instances_max = 12", "instances_max = 1").replace("lease_seconds = 30", "lease_seconds = 60")
ONE_MACHINE = ONE_MACHINE.replace("tick_seconds = 0.3", "tick_seconds = 4")
# What comes one after the other until the job runs: whose moment, and how its text begins.
STAGES = (
    ("low", "drain asked", "the other one was asked to leave"),
    ("low", "final saved", "it was saved"),
    ("low", "terminate called", "its machine was told to end"),
    ("low", "instance gone", "it was gone"),
    ("high", "launch accepted", "the next one was ordered"),
    ("high", "agent ready", "it had booted"),
    ("high", "epoch granted", "it was given the job"),
)


def stages(world: Fleet, low: str, high: str, line_at: datetime) -> dict[str, float]:
    """Seconds from the submission to each stage, as the controller's clock has them."""
    since, jobs = datetime.fromisoformat(world.show(high)["submitted_at"]), {"low": low, "high": high}
    told = {name: world.moments(job, "attempt") for name, job in jobs.items()}
    found = {
        what: next(m["at"] for m in told[who] if m["text"].startswith(text) and m["at"] >= since.isoformat())
        for who, text, what in STAGES
    }
    at = {what: datetime.fromisoformat(text) for what, text in found.items()} | {"its first line was read": line_at}
    return {what: (moment - since).total_seconds() for what, moment in at.items()}


def test_a_job_of_high_priority_takes_the_only_machine_and_the_low_one_comes_back(tmp_path: Path) -> None:
    with fleet(tmp_path, 600, ONE_MACHINE) as world:
        low = world.submit(500, name="low", priority=-10)
        world.wait_line(low, 40, 180)
        high = world.submit(100, name="high", priority=10)
        world.wait_line(high, 0, 120)
        line_at = SystemClock().now()
        waiting, after = world.show(low), stages(world, low, high, line_at)
        boot = after["it had booted"] - after["the next one was ordered"]
        runs = after["its first line was read"]
        print(*(f"{seconds:6.2f} s  {what}" for what, seconds in after.items()), sep="\n")
        print(f"{runs:.1f} s in all: {boot:.1f} s a machine boots, taking over took {runs - boot:.1f} s; {waiting['note']}")
        assert runs - boot < TAKES_SECONDS_MAX, "a loaded host boots slowly: that is no part of it"
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
