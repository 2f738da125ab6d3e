"""A controller in this process, without agents: the real loop, tables and database on any provider. It can die."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

from spotsurfer_policies.offer_choice import Cheapest
from spotsurfer_wire.store.port import Listed
from sqlalchemy import Engine
from support.builders import a_job
from support.dict_store import DictStore

from spotsurfer.controller.apply import Apply
from spotsurfer.controller.loop import Loop, Policies
from spotsurfer.controller.machines.clouds import Clouds
from spotsurfer.controller.observe import Observer
from spotsurfer.model.actions import Decision
from spotsurfer.model.job import Attempt, JobId, JobState
from spotsurfer.model.snapshot import Limits
from spotsurfer.ports.clock import ManualClock, SystemClock
from spotsurfer.ports.service import Moment
from spotsurfer.state import jobs as rows
from spotsurfer.state import timeline
from spotsurfer.state.db import open_database
from spotsurfer.store.agent_reports import Reports
from spotsurfer.store.head_logs import HeadLogs
from spotsurfer.store.leadership import Leadership

POLICY = Cheapest(stay_seconds=10.0, margin=0.2)


def clock(skew_seconds: float = 0.0) -> ManualClock:
    """Stands at this moment, or so far from it, until a test moves it."""
    made = ManualClock(SystemClock().now())
    made.advance(skew_seconds)
    return made


class Versions(DictStore):
    """Listings show whether an object has changed, as those of real stores do."""

    def list(self, prefix: str, after: str | None = None) -> list[Listed]:
        return [replace(x, version=sha256(self.objects[x.key]).hexdigest()) for x in super().list(prefix, after)]


class Desk:
    """`provider` may be another one after `reborn`: with other settings, or one that makes the controller die."""

    def __init__(
        self,
        provider: Any,
        at: ManualClock,
        family: str,
        kept: tuple[Engine, DictStore] | None = None,
        others: Sequence[Any] = (),
    ) -> None:
        """`kept`: what is left of a controller that died. `others`: more providers beside the first one."""
        self.clock, self.family = at, family
        self.engine, self.store = kept or (open_database(None), Versions())
        clouds = Clouds([provider, *others], f"{next(iter(provider.capabilities.stores), 'memory')}://store")
        self.limits = Limits(instances_max=1000, advice_moves=clouds.having(lambda c: c.rebalance == "move"))
        self.user_data: Callable[[Attempt], str] = lambda a: f"#!/bin/sh\n# {a.job}.{a.number}\n"
        leadership = Leadership(self.store, at)
        leadership.take()
        self.heads, self.reports = HeadLogs(self.store), Reports(self.store)
        self.observer = Observer(self.engine, clouds, self.reports, self.heads, self.limits, (30.0, 0.0))
        apply = Apply(
            engine=self.engine,
            clouds=clouds,
            store=self.store,
            heads=self.heads,
            clock=at,
            family=family,
            user_data=lambda a: self.user_data(a),
            on_end=lambda _c, _j: None,
            instance_of=self.observer.instance_of,
        )
        self.loop = Loop(self.engine, self.observer, apply, Policies(POLICY), at, leadership)

    def reborn(self, provider: Any) -> Desk:
        """The next process on the same data folder."""
        return Desk(provider, self.clock, self.family, (self.engine, self.store))

    def submit(self, name: str = "job", **spec: Any) -> None:
        """A job that waits for its first machine."""
        job = replace(a_job(spec), id=JobId(name), state=JobState.QUEUED, submitted_at=self.clock.now())
        with self.engine.begin() as c:
            rows.add_job(c, job)

    def tick(self, times: int = 1, seconds: float = 1.0) -> Decision:
        """Look and act, so many times, with time in between."""
        decision = Decision()
        for _ in range(times):
            self.clock.advance(seconds)
            decision = self.loop.tick()
        return decision

    def attempts(self, name: str = "job") -> list[Attempt]:
        """Oldest first."""
        with self.engine.connect() as c:
            return sorted(rows.attempts(c, [JobId(name)])[JobId(name)], key=lambda a: a.number)

    def moments(self, kind: str) -> list[Moment]:
        """Of all jobs."""
        with self.engine.connect() as c:
            return [m for _, m in timeline.read(c, None, 0) if m.kind == kind]
