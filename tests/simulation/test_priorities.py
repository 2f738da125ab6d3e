"""More jobs than there is room for, of several priorities, in the virtual world: limits hold, and every job comes to its end.

The controller dies at any call, often. What must hold at each second is in the world itself; here are the rules of giving way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from simulation.chances import Chances
from simulation.chances import calm as no_chances
from simulation.seeds import seeds
from simulation.world import LIMITS, World

from spotsurfer.model.job import OVER, Attempt, JobId
from spotsurfer.state import jobs as rows
from spotsurfer.state import timeline

STAY, AGEING = 40.0, 15.0
HOURLY = 250_000  # micro-dollars: two machines on demand, or some more of spot
TIGHT = replace(LIMITS, instances_max=2, hourly_max_usd_micros=HOURLY, stay_seconds=STAY, ageing_seconds=AGEING)
COMING = {0: -10, 20: -10, 70: 10, 130: 0, 200: 10, 330: 10}
SEEDS = 2


class Crowd(World):
    """Checks the limit on money too, at each second."""

    def __init__(self, seed: int, coming: dict[int, int] = COMING, work: int = 120, **chances: Any) -> None:
        super().__init__(seed, jobs=0, work=work, chances=Chances(**{"crash": 0.01, **chances}), limits=TIGHT)
        self.coming = dict(coming)

    def check(self) -> None:
        super().check()
        alive = [a for some in attempts(self).values() for a in some if a.state not in OVER]
        assert sum(a.price_usd_micros_per_hour for a in alive) <= HOURLY
        assert len(alive) <= TIGHT.instances_max


def attempts(world: World) -> dict[JobId, list[Attempt]]:
    with world.engine.connect() as c:
        return rows.attempts(c, world.ids)


def asked(world: World, attempt: Attempt) -> datetime:
    """When it was asked to give way, for the first time."""
    with world.engine.connect() as c:
        some = [m for _, m in timeline.read(c, attempt.job, 0) if m.kind == "asked" and m.attempt == attempt.number]
    return min(m.at for m in some if "its machine goes to" in m.text)


def stays(world: World) -> Iterator[float]:
    """Seconds from coming back after giving way to being asked again."""
    for some in attempts(world).values():
        back: Attempt | None = None
        gave = False
        for a in (a for a in some if a.granted_at is not None):
            back = a if gave and back is None else back
            if a.gave_way_to:
                if back is not None and back.granted_at is not None:
                    yield (asked(world, a) - back.granted_at).total_seconds()
                back, gave = None, True


def suspended(world: World) -> list[Attempt]:
    return [a for some in attempts(world).values() for a in some if a.gave_way_to and a.drained]


def played(seed: int) -> Crowd:
    world = Crowd(seed)
    assert world.run(limit=9000, quiet_after=900) == "ok"
    world.check_end()
    assert all(s >= STAY for s in stays(world)), sorted(stays(world))
    return world


def test_limits_hold_every_job_ends_and_nobody_is_suspended_twice_within_a_stay() -> None:
    worlds = [played(seed) for seed in range(SEEDS)]
    assert sum(len(suspended(w)) for w in worlds) >= SEEDS
    assert sum(w.crashes for w in worlds) > 10 * SEEDS


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", seeds(40))
def test_many_seeds(seed: int) -> None:
    played(1000 + seed)


def calm(coming: dict[int, int], work: int) -> Crowd:
    """Nothing goes wrong by itself, and there is one machine."""
    world = Crowd(1, coming, work, **vars(no_chances()))
    world.users_busy = False
    world.limits = replace(TIGHT, instances_max=1)
    world.restart()
    return world


def test_who_is_starved_has_its_turns() -> None:
    """A job of high priority that would run for ever leaves the machine to the other one again and again."""
    world = calm({0: 10, 5: 0}, 100_000)
    assert world.run(limit=1500, quiet_after=5000) == "stuck"
    turns = [a for a in attempts(world)[JobId("job-1")] if a.granted_at is not None]
    assert len(turns) >= 3
    assert all(s >= STAY for s in stays(world))
    high = [a for a in attempts(world)[JobId("job-0")] if a.granted_at is not None]
    assert len(high) >= 3, "and takes it back"


def test_a_priority_that_is_raised_later_counts() -> None:
    world = calm({0: 0, 5: 0}, 300)
    assert world.run(limit=100, quiet_after=5000) == "stuck"
    assert suspended(world) == []
    world.commands.prioritize("job-1", 10)
    assert world.run(limit=1500, quiet_after=5000) == "ok"
    first = min(suspended(world), key=lambda a: a.since)
    assert (first.job, first.gave_way_to) == ("job-0", "job-1")


def test_equals_come_one_after_the_other() -> None:
    world = calm({0: 0, 5: 0, 9: 0}, 200)
    assert world.run(limit=3000, quiet_after=5000) == "ok"
    assert suspended(world) == []
    assert world.cloud.launches == 3
