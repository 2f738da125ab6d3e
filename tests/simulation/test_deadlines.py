"""Jobs with a deadline in the virtual world: it is kept, whatever policies say, as long as on-demand can be had.

Spot is refused, never boots, is noticed, killed and cut off. On-demand machines can be had and stay: that is what the promise
rests on. Where the cloud's API, the store or the controller are away, a job may be late.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from simulation.chances import Chances
from simulation.moods import Always, MoodyInterval, MoodyPurchase
from simulation.seeds import seeds
from simulation.world import World
from spotsurfer_policies.baselines import make_greedy
from spotsurfer_policies.purchase_surf import make as make_surf

from spotsurfer.model.job import JobState
from spotsurfer.model.market import Market
from spotsurfer.ports.policies import Buy, Purchase
from spotsurfer.state import jobs as rows

WORK, DEADLINE = 300, 1700  # seconds
SLOW = {"boots_seconds": (10, 22)}
# What costs work that was saved, or is its user's doing, is another matter.
BLAMELESS = {"restore_fails": 0.0, "image_bad": 0.0, "unfit": 0.0, "useless": 0.0, "registry": 0.0, "command_fails": 0.0}
CALM = {"outage": 0.0, "crash": 0.0, "stands_still": 0.0, "single": 0.0, "agent_dies": 0.0}
KINDS = ("surf", "greedy", "waits", "spot alone", "moody")
QUICK = ("surf", "waits", "moody")


def purchase(kind: str, seed: int) -> Purchase:
    made: dict[str, Purchase] = {
        "surf": make_surf({}),
        "greedy": make_greedy({}),
        "waits": Always(Buy.WAIT),
        "spot alone": Always(Buy.SPOT),
        "moody": MoodyPurchase(seed),
    }
    return made[kind]


def played(kind: str, seed: int, calm: bool = False) -> World:
    """With `calm`, what is away is spot alone."""
    chances: dict[str, Any] = {**SLOW, **BLAMELESS, **(CALM if calm else {})}
    world = World(
        seed,
        jobs=1,
        work=WORK,
        chances=Chances(**chances, on_demand_sure=True),
        purchase=purchase(kind, seed),
        interval=MoodyInterval(seed),
        deadline_seconds=float(DEADLINE),
        work_seconds=float(WORK),
    )
    world.users_ask = False
    world.stormy = not calm
    assert world.run() == "ok"
    world.check_end()
    return world


def spare(world: World) -> float:
    """Seconds between the end of the job and its deadline."""
    with world.engine.connect() as c:
        (job,) = rows.all_jobs(c)
    assert job.state is JobState.SUCCEEDED
    assert job.ended_at is not None
    return (job.submitted_at + timedelta(seconds=DEADLINE) - job.ended_at).total_seconds()


def markets(world: World) -> list[Market]:
    """Of the machines that the job ran on, in order."""
    with world.engine.connect() as c:
        return [a.market for a in rows.attempts(c, world.ids)[world.ids[0]] if a.granted_at is not None]


@pytest.mark.parametrize("kind", QUICK)
def test_the_deadline_is_kept_whatever_becomes_of_spot(kind: str) -> None:
    world = played(kind, KINDS.index(kind), calm=True)
    assert world.away == []
    assert spare(world) >= 0
    if kind == "waits":
        assert set(markets(world)) == {Market.ON_DEMAND}, "what the policy did not want"


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", seeds(20))
@pytest.mark.parametrize("kind", KINDS)
def test_many_calm_seeds(kind: str, seed: int) -> None:
    assert spare(played(kind, 1000 + seed, calm=True)) >= 0


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", seeds(20))
@pytest.mark.parametrize("kind", KINDS)
def test_where_all_else_is_away_too_a_job_may_be_late_but_ends(kind: str, seed: int) -> None:
    spare(played(kind, 1000 + seed))
