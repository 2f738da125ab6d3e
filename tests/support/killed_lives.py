"""A controller that is killed between call and record, and comes back: lives that share a data folder and a cloud.

Each life is a process of its own on one data folder, and ends by SIGKILL: before the call, after it, or when it writes down
what came of it. What is other when it comes back: nothing, its settings, the user-data (another version), or that the cloud
takes the order and answers with an error.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import event
from support.desk import Desk, Versions, clock

from spotsurfer.model.job import AttemptState
from spotsurfer.ports.clock import Clock, ManualClock
from spotsurfer.state.db import open_database

DEATHS = 50
SEEDS = 10
JOBS = 2
TICKS = 12  # of a life that meets no death
LIVES = 4 * DEATHS  # more than enough


class Cloud(Protocol):
    """What the test has to know of a cloud."""

    def provider(self, path: Path, clock: Clock, changed: bool) -> Any:
        """A provider with an empty memory; with some other settings if they `changed`."""

    def fail_after_orders(self, times: int) -> None:
        """The next so many orders are carried out and answered with an error."""

    def machines(self) -> Sequence[tuple[str, str, str, str]]:
        """All that were ever made: instance, job, attempt, token."""
        ...


@dataclass
class Fate:
    """When a life ends: at the `left`th occasion of a kind."""

    kind: str
    left: int

    def at(self, kind: str) -> None:
        """One occasion."""
        self.left -= kind == self.kind
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class Deadly:
    """A provider whose orders kill the controller, before or after they are given."""

    def __init__(self, provider: Any, fate: Fate) -> None:
        self._provider, self._fate = provider, fate

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._provider, name)
        if name not in ("launch", "terminate"):
            return value

        def call(*arguments: Any) -> Any:
            self._fate.at("before")
            answer = value(*arguments)
            self._fate.at("after")
            return answer

        return call


@dataclass
class House:
    """What outlives a controller, and what each is made of."""

    cloud: Cloud
    family: str
    path: Path
    clock: ManualClock

    def desk(self, fate: Fate, changed: bool = False, version: int = 0) -> Desk:
        """The next process on the data folder."""
        provider = self.cloud.provider(self.path, self.clock, changed)
        kept = (open_database(self.path / "state.db"), durable(self.path / "store"))
        made = Desk(Deadly(provider, fate), self.clock, self.family, kept)
        made.user_data = lambda a: f"#!/bin/sh\n# {a.job}.{a.number}, version {version}\n"
        event.listen(made.engine, "commit", lambda _: fate.at("commit"))
        return made

    def life(self, fate: Fate, changed: bool, version: int) -> bool:
        """In a process of its own; whether it met its death."""
        child = os.fork()
        if child == 0:
            try:
                self._live(self.desk(fate, changed, version))
                os._exit(0)
            finally:
                os._exit(1)
        status = os.waitpid(child, 0)[1]
        assert status in (0, signal.SIGKILL), f"a life ended with {status}"
        return status == signal.SIGKILL

    def _live(self, desk: Desk) -> None:
        for _ in range(TICKS):
            desk.tick()
            newest = [a for i in range(JOBS) for a in desk.attempts(f"job-{i}")[-1:]]
            if all(a.state is AttemptState.BOOTING for a in newest):
                self.clock.advance(desk.limits.boot_limit_seconds + 1)  # no agent: it is given up, the next one is ordered


def durable(file: Path) -> Versions:
    """A store whose objects are there for the next process. (Not obstore: its threads do not survive a fork.)"""
    store = Versions()
    if file.exists():
        store.objects = {k: bytes.fromhex(v) for k, v in json.loads(file.read_text()).items()}

    def write(_verb: str, _key: str) -> None:
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps({k: v.hex() for k, v in store.objects.items()}))
        fresh.replace(file)

    store.after = write
    return store


NEVER = Fate("never", 1)


def live_and_die(seed: int, cloud: Cloud, family: str, path: Path) -> None:
    """A tenth of the deaths. Never are there two machines for an attempt, and each machine is in the books."""
    chance, deaths = random.Random(seed), 0
    house = House(cloud, family, path, clock())
    first = house.desk(NEVER)
    for i in range(JOBS):
        first.submit(f"job-{i}")
    first.engine.dispose()
    for _ in range(LIVES):
        fate = Fate(chance.choice(["before", "after", "after", "commit"]), chance.randint(1, 3))
        cloud.fail_after_orders(chance.choice([0, 1]))
        deaths += house.life(fate, chance.choice([False, False, True]), chance.randint(0, 2))
        house.clock.advance(chance.choice([5.0, 1000.0]))
        if deaths == DEATHS // SEEDS:
            break
    assert deaths == DEATHS // SEEDS
    cloud.fail_after_orders(0)
    last = house.desk(NEVER)
    last.tick(6)
    made = cloud.machines()
    counts = Counter((job, attempt) for _, job, attempt, _ in made)
    assert set(counts.values()) == {1}, counts
    assert len({token for *_, token in made}) == len(made)
    known = {a.instance for i in range(JOBS) for a in last.attempts(f"job-{i}")}
    last.engine.dispose()
    assert {instance for instance, *_ in made} <= known, "every machine is in the books"
