"""Live: a deadline is kept where greedy alone misses it; a job comes back from on-demand to spot and gains; the same bytes.

Minutes stand for days here. Bills have a minimum of a minute for each machine, so that the ledger tells what was saved only
where machines ran for longer.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_wire.messages import HeadKind
from support.fleet import CONFIG, ENDED, MARKS, Fleet, fleet

pytestmark = [*MARKS, pytest.mark.slow, pytest.mark.timeout(400)]
STEPS, WORK, DEADLINE = 1300, 90.0, 210.0
# Spot can be had at first; then both machines are taken, and there is none until long after the deadline.
GONE = """
[[reclaim]]
launch = 1
after_seconds = 55
notice_seconds = 8
[[reclaim]]
launch = 2
after_seconds = 45
notice_seconds = 8
[[outage]]
at_reclaim = 1
seconds = 600
"""
# There is none at first, then there is, at a price of some places and times.
LATE = """
[[outage]]
to_seconds = 20
[[price]]
factor = 0.4
"""


def settings(folder: Path, market: str, purchase: str = "surf") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "scenario.toml"
    file.write_text(market)
    scripted = CONFIG.replace("[provider.local]", f'[provider.local]\nscenario = "{file}"')
    scripted = scripted.replace("[limits]", "[limits]\ndeadline_reserve_seconds = 0")  # nothing is away here
    return scripted + f'[policy]\npurchase = "{purchase}"\n[policy.cheapest]\nstay_seconds = 5\n'


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def seconds_in(job: dict[str, Any], market: str) -> float:
    """That machines of a market were paid for."""
    some = [a for a in job["attempts"] if a["market"] == market and a["launched_at"]]
    return sum((at(a["released_at"]) - at(a["launched_at"])).total_seconds() for a in some)


@pytest.mark.parametrize("purchase", ["surf", "greedy"])
def test_a_deadline_is_kept_where_greedy_alone_misses_it(tmp_path: Path, purchase: str) -> None:
    """The policy `greedy` says what a job does that may have spot alone: spot when there is some, else nothing."""
    with fleet(tmp_path / "fleet", config=settings(tmp_path, GONE, purchase)) as world:
        waits = world.submit(STEPS, name="waits", market="spot")
        world.wait_state(waits, "running")  # and it is known how long a launch takes
        due = world.submit(STEPS, name="due", deadline_seconds=DEADLINE, work_seconds=WORK)
        ended = world.wait_end(due, 250)
        assert ended["state"] == "succeeded"
        end = at(ended["submitted_at"]) + timedelta(seconds=DEADLINE)
        print(f"{purchase}: {(end - at(ended['ended_at'])).total_seconds():.0f} s to spare; {told(world, ended)}")
        assert at(ended["ended_at"]) <= end
        world.assert_identical(due)
        world.assert_one_owner(due)
        assert seconds_in(ended, "spot") > 0, "the deadline was kept with spot"
        grants = [entry for entry in world.head(due) if entry.kind is HeadKind.GRANT]
        assert grants[-1].checkpoint is not None, "not with on-demand alone"
        overruled = [m for m in world.moments(due) if "the deadline would be at risk" in str(m)]
        assert overruled or purchase != "greedy", "greedy bought on-demand by itself"
        other = world.show(waits)
        assert other["state"] not in ENDED, "who waits for spot was done as soon"
        assert not any(a["state"] in ("running", "restoring") for a in other["attempts"]), (
            "it has a machine, the script gives none"
        )
        world.client.post(f"/v1/jobs/{waits}/cancel")
        world.wait_end(waits)


def test_a_job_comes_back_from_on_demand_to_spot_and_gains(tmp_path: Path) -> None:
    config = settings(tmp_path, LATE).replace('checkpoint_interval = "{interval}s"\n', "")
    with fleet(tmp_path / "fleet", config=config) as world:
        job = world.submit(1500)
        ended = world.wait_end(job, 200)
        world.assert_identical(job)
        world.assert_one_owner(job)
        held = [a for a in ended["attempts"] if a["granted_at"]]
        assert [a["market"] for a in held] == ["on-demand", "spot"]
        stayed = (at(ended["ended_at"]) - at(held[0]["launched_at"])).total_seconds()
        staying = stayed * held[0]["price_usd_micros_per_hour"] / 3600
        print(f"{ended['usd_micros']} micro-dollars; on-demand alone: {staying:.0f}; {told(world, ended)}")
        assert ended["usd_micros"] < staying
        assert ended["usd_micros"] < ended["usd_micros_on_demand"]
        wished = {m["attempt"]: m["data"]["interval_seconds"] for m in world.moments(job, "paced")}
        assert set(wished) == {a["number"] for a in held}, "nobody named an interval, so the policy did"
        assert held[1]["pace_seconds"] >= 30
        assert "a save stops the job for" in held[1]["pace_why"]


def told(world: Fleet, job: dict[str, Any]) -> str:
    """What it was bought, and for how long."""
    some = [a for a in job["attempts"] if a["launched_at"]]
    return ", ".join(
        f"{a['market']} {(at(a['released_at']) - at(a['launched_at'])).total_seconds():.0f} s ({a['purpose']})" for a in some
    )
