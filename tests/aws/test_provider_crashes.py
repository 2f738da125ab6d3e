"""The controller dies between call and record, fifty times, and comes back: never two machines for one attempt.

Where it dies: before the call, after it, or when it writes down what came of it. What is other when it comes back: nothing, its
settings (a tag), the user-data (another version), or that EC2 takes the order and answers with an error.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from support import aws
from support.desk import Desk, clock
from support.ec2.client import TestEC2

from spotsurfer.model.job import AttemptState

DEATHS = 50
SEEDS = 10
JOBS = 2


class Crash(BaseException):
    """The controller dies here; nothing may catch it."""


class Deadly:
    """A provider whose orders kill the controller, before or after they are given."""

    def __init__(self, provider: Any, when: Callable[[str], None]) -> None:
        self._provider, self._when = provider, when

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._provider, name)
        if name not in ("launch", "terminate"):
            return value

        def call(*arguments: Any) -> Any:
            self._when("before")
            answer = value(*arguments)
            self._when("after")
            return answer

        return call


class Fate:
    """Says when to die: at the n-th occasion of a kind."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.deaths = 0
        self.again()

    def again(self) -> None:
        """The next life."""
        self.kind = self.random.choice(["before", "after", "after", "commit"])
        self.left = self.random.randint(1, 2)

    def at(self, kind: str) -> None:
        if kind != self.kind:
            return
        self.left -= 1
        if self.left == 0:
            self.deaths += 1
            raise Crash


LONG = [pytest.mark.slow, pytest.mark.aws]


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=LONG) for seed in range(3, SEEDS))])
def test_never_two_machines_for_an_attempt(seed: int, cloud: TestEC2, family: str, tmp_path: Path) -> None:
    fate, at = Fate(seed), clock()

    def provider() -> Deadly:
        tags = fate.random.choice([{}, {}, {"settings": "changed"}])
        return Deadly(aws.provider(cloud, family, tmp_path, at, tags=tags), fate.at)

    desk = Desk(provider(), at, family)
    armed = [False]

    @event.listens_for(desk.engine, "commit")
    def die_at_commit(_: object) -> None:
        if armed[0]:
            fate.at("commit")

    for i in range(JOBS):
        desk.submit(f"job-{i}")
    while fate.deaths < DEATHS // SEEDS:
        armed[0] = True
        times = fate.random.choice([0, 1])
        cloud.order("rule", action="RunInstances", code="InternalError", status=500, after=True, times=times)
        try:
            desk.tick()
        except Crash:
            armed[0] = False
            fate.again()
            desk = desk.reborn(provider())
            version = fate.random.randint(0, 2)
            desk.user_data = lambda a, v=version: f"#!/bin/sh\n# {a.job}.{a.number}, version {v}\n"
        if all(a.state is AttemptState.BOOTING for i in range(JOBS) for a in desk.attempts(f"job-{i}")[-1:]):
            at.advance(desk.limits.boot_limit_seconds + 1)  # no agent: it is given up, and the next one is ordered
    armed[0], fate.kind = False, "never"
    cloud.order("rules", clear=True)
    desk.tick(6)
    made = [x for x in cloud.machines() if x["tags"].get("spotsurfer:family") == family]
    counts = Counter((x["tags"]["spotsurfer:job"], x["tags"]["spotsurfer:attempt"]) for x in made)
    assert set(counts.values()) == {1}, counts
    assert len({x["tags"]["spotsurfer:token"] for x in made}) == len(made)
    known = {a.instance for i in range(JOBS) for a in desk.attempts(f"job-{i}")}
    assert {x["id"] for x in made} <= known  # every machine is in the books
