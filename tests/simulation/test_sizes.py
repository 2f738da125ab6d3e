"""Jobs that grow and shrink in the virtual world, under size policies that are asked live."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from simulation.moods import MoodySize
from simulation.seeds import seeds
from simulation.sizeworld import SizedWorld
from spotsurfer_lab.size_backtest import size_policy
from support.loads import Load, noise, spikes, square
from support.rides import GIB

from spotsurfer.ports.policies import Size

MOST = 29 * GIB  # the largest machine holds it
SETTINGS = {"mem_lower": 60.0, "upper_seconds": 20.0, "lower_seconds": 20.0, "cool_down_seconds": 30.0}
KINDS = ("surf", "threshold", "moody")
WORK = 400
CHOSEN = (("surf", 4), ("threshold", 7), ("moody", 3))  # together they show all kinds of change
MORE = 4  # seeds of each kind, where they don't


def policy(kind: str, seed: int) -> Size:
    if kind == "moody":
        return MoodySize(seed)
    return size_policy(kind, SETTINGS if kind == "threshold" else {})


def load_of(seed: int) -> Load:
    rand = random.Random(seed)
    shares = rand.choice([(0.02, 1.0), (0.1, 0.3), (0.05, 0.2), (0.2, 0.9)])
    made = (
        lambda: square(MOST, rand.choice([30, 60, 90, 150]), *shares),
        lambda: spikes(MOST, rand.choice([40, 80, 120]), *shares),
        lambda: noise(MOST, seed, WORK + 10),
    )
    return rand.choice(made)()


def played(kind: str, seed: int) -> SizedWorld:
    made = policy(kind, seed)
    world = SizedWorld(seed, lambda _n, _p: made, load_of(seed), 3 + seed % 6, scarce=seed % 2 > 0, work=WORK)
    assert world.run(8000) == "ok"
    world.check_end()
    return world


def test_jobs_of_changing_size_end_within_their_moves() -> None:
    counted = Counter[str]()
    more = ((kind, seed) for seed in range(MORE) for kind in KINDS)
    for n, (kind, seed) in enumerate(itertools.chain(CHOSEN, more), start=1):
        counted += played(kind, seed).counted
        if n >= len(CHOSEN) and all(counted[what] for what in ("wish", "down", "near miss")):
            return
    raise AssertionError(counted)


def test_a_job_that_no_machine_holds_says_so_and_loses_nothing() -> None:
    made = policy("surf", 0)
    world = SizedWorld(1, lambda _n, _p: made, lambda t: (t * GIB, 1.0), 6, scarce=False, work=WORK)
    world._quiet()
    assert world.run(150, quiet_after=9000) == "stuck"
    (job,) = world.ids
    assert "the largest on offer has 32.0" in world.loop.note_of(job)
    drained = [a for a in world.attempts[job] if a.granted_at is not None]
    assert [a.pool.instance_type for a in drained] == ["a.medium", "a.large"]
    assert all(a.drained for a in drained)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", seeds(40))
@pytest.mark.parametrize("kind", KINDS)
def test_many_seeds(kind: str, seed: int) -> None:
    played(kind, 1000 + seed)
