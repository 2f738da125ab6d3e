"""The controller is killed between call and record, fifty times, and comes back: never two machines for one attempt.

Each life is a process of its own on one data folder, and ends by SIGKILL: before the call, after it, or when it writes down
what came of it. What is other when it comes back: nothing, its settings (a tag), the user-data (another version), or that EC2
takes the order and answers with an error.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from support import aws
from support.desk import Desk, Versions, clock
from support.ec2.client import TestEC2

from spotsurfer.model.job import AttemptState
from spotsurfer.ports.clock import ManualClock
from spotsurfer.state.db import open_database

pytestmark = pytest.mark.real

DEATHS = 50
SEEDS = 10
JOBS = 2
TICKS = 12  # of a life that meets no death
LIVES = 4 * DEATHS  # more than enough


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

    cloud: TestEC2
    family: str
    path: Path
    clock: ManualClock

    def desk(self, fate: Fate, tags: dict[str, str], version: int) -> Desk:
        """The next process on the data folder."""
        provider = aws.provider(self.cloud, self.family, self.path, self.clock, tags=tags)
        kept = (open_database(self.path / "state.db"), durable(self.path / "store"))
        made = Desk(Deadly(provider, fate), self.clock, self.family, kept)
        made.user_data = lambda a: f"#!/bin/sh\n# {a.job}.{a.number}, version {version}\n"
        event.listen(made.engine, "commit", lambda _: fate.at("commit"))
        return made

    def life(self, fate: Fate, tags: dict[str, str], version: int) -> bool:
        """In a process of its own; whether it met its death."""
        child = os.fork()
        if child == 0:
            try:
                self._live(self.desk(fate, tags, version))
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
LONG = [pytest.mark.slow]


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=LONG) for seed in range(3, SEEDS))])
def test_never_two_machines_for_an_attempt(seed: int, cloud: TestEC2, family: str, tmp_path: Path) -> None:
    chance, deaths = random.Random(seed), 0
    house = House(cloud, family, tmp_path, clock())
    first = house.desk(NEVER, {}, 0)
    for i in range(JOBS):
        first.submit(f"job-{i}")
    first.engine.dispose()
    for _ in range(LIVES):
        fate = Fate(chance.choice(["before", "after", "after", "commit"]), chance.randint(1, 3))
        times = chance.choice([0, 1])
        cloud.order("rule", action="RunInstances", code="InternalError", status=500, after=True, times=times)
        deaths += house.life(fate, chance.choice([{}, {}, {"settings": "changed"}]), chance.randint(0, 2))
        house.clock.advance(chance.choice([5.0, 1000.0]))
        if deaths == DEATHS // SEEDS:
            break
    assert deaths == DEATHS // SEEDS
    cloud.order("rules", clear=True)
    last = house.desk(NEVER, {}, 0)
    last.tick(6)
    made = [x for x in cloud.machines() if x["tags"].get("spotsurfer:family") == family]
    counts = Counter((x["tags"]["spotsurfer:job"], x["tags"]["spotsurfer:attempt"]) for x in made)
    assert set(counts.values()) == {1}, counts
    assert len({x["tags"]["spotsurfer:token"] for x in made}) == len(made)
    known = {a.instance for i in range(JOBS) for a in last.attempts(f"job-{i}")}
    last.engine.dispose()
    assert {x["id"] for x in made} <= known, "every machine is in the books"
    assert made
