"""The store fails for long while controllers restart: no machine that is well is ended, and no second of work is lost.

One more machine may come, after a quarter of an hour, to show whether the store takes reports: it is never given the job.

Few seeds here. Ten thousand, in several processes:
`SEEDS=0:10000 .venv/bin/python -m pytest -n 2 -m slow -k many_outages tests/simulation` (an hour and a half).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from simulation.chances import calm
from simulation.objects import WRITES
from simulation.seeds import seeds
from simulation.trouble import Hits, Trouble, every, mend
from simulation.world import LIMITS, World
from spotsurfer_wire.store.port import StoreDenied, StoreFull, StoreUnreachable

from spotsurfer.model.errors import StoreUnwritable
from spotsurfer.model.job import AttemptState as A

HOUR, MINUTES = 3600, 600  # seconds
# As in production: a machine that says nothing for 75 seconds is called silent.
LIMITS_HERE = replace(LIMITS, lease_seconds=60.0, lease_margin_seconds=15.0)
READS = ("get", "list")
ERRORS = (StoreUnreachable, StoreDenied, StoreFull)
PREFIXES = ("live/", "jobs/", "controller/", "pulse", "spotsurfer.json")


def refused(rand: random.Random, verbs: tuple[str, ...], prefix: str = "") -> Trouble:
    """To both, or to one of them alone."""
    who = rand.choice(["", "", "agent", "controller"])
    hits: Hits = lambda by, verb, key: who in ("", by) and verb in verbs and key.startswith(prefix)  # noqa: E731
    return Trouble(hits, rand.choice(ERRORS))


# What happens to the store, for how long, and how often somebody looks: seldom, where a look is like the one before.
KINDS: dict[str, tuple[Callable[[random.Random], Trouble], int, int]] = {
    "nth call answered with 503": (lambda r: every(r.choice([2, 3, 5, 10]), r.random()), MINUTES, 5),
    "nth answer lost": (lambda r: replace(every(r.choice([2, 3, 5, 10]), r.random()), lost=True), MINUTES, 5),
    "all writes refused": (lambda r: refused(r, WRITES), HOUR, 25),
    "all reads refused": (lambda r: refused(r, READS), HOUR, 25),
    "all refused": (lambda r: refused(r, (*READS, *WRITES)), HOUR, 25),
    "some keys refused": (lambda r: refused(r, (*READS, *WRITES), r.choice(PREFIXES)), HOUR, 25),
}


def machines(world: World) -> list[str]:
    return [m.id for m in world.cloud.machines.values() if m.gone_at is None]


def worked(world: World, ids: list[str]) -> list[float]:
    return [m.agent.work for m in world.cloud.machines.values() if m.id in ids and m.agent is not None]


class Controller:
    """A process that is restarted now and then with other settings, and can't begin while the store takes nothing."""

    def __init__(self, world: World, rand: random.Random, restarts: float) -> None:
        self._world, self._rand, self._restarts = world, rand, restarts
        self._runs = True

    def look(self) -> None:
        """After some time has passed."""
        self._world._pass()
        self._runs = self._runs and self._rand.random() >= self._restarts
        if not self._runs:
            lease, margin = self._rand.choice([30.0, 60.0, 120.0]), self._rand.choice([10.0, 15.0])
            self._world.limits = replace(LIMITS_HERE, lease_seconds=lease, lease_margin_seconds=margin)
            try:
                self._world.begin()
            except StoreUnwritable:
                return
            self._runs = True
        self._world.loop.tick()


def outlived(kind: str, seed: int) -> None:
    """An outage of this kind."""
    rand = random.Random(seed)
    make, seconds, stride = KINDS[kind]
    world = World(seed, jobs=rand.choice([2, 2, 3]), work=10**6, chances=calm(), limits=LIMITS_HERE)
    world.until_running()
    before = machines(world)
    work = worked(world, before)
    controller = Controller(world, rand, restarts=rand.choice([0.0, 0.02, 0.1]))
    world.stride = stride
    make(rand).strike(world.store)
    for _ in range(seconds // stride):
        controller.look()
        assert set(before) <= set(machines(world)), f"{kind}: a machine was ended"
    mend(world.store)
    world.stride = 5
    for _ in range(24):
        controller.look()
        assert set(before) <= set(machines(world)), f"{kind}: a machine was ended when it was over"
    world.check()
    for first, *others in world.attempts.values():
        assert first.state is A.RUNNING and all(a.granted_at is None for a in others), world.attempts
    assert all(now > then for now, then in zip(worked(world, before), work, strict=True))
    world.end()


@pytest.mark.parametrize("kind", KINDS)
def test_an_outage_ends_no_machine(kind: str) -> None:
    outlived(kind, 1)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", seeds(60))
def test_many_outages_end_no_machine(seed: int) -> None:
    outlived(list(KINDS)[seed % len(KINDS)], seed)
