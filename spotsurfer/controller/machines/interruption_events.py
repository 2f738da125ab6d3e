"""Records each interruption notice once, from the cloud's queue of events and from agents.

A message is settled only after its notice was committed; a notice that comes twice, or that an agent already reported, changes
nothing. `decide` acts on notices, with one exception: this file handles the effects of the cloud's advice to leave a machine on
its pool and on checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.store.port import StoreError
from sqlalchemy import Connection, Engine

from spotsurfer.controller.machines.clouds import Clouds
from spotsurfer.model.job import HOLDS, Attempt, Job
from spotsurfer.model.market import Cooldown
from spotsurfer.model.timeline_events import Kind
from spotsurfer.ports.provider import Notice, NoticeKind, Provider
from spotsurfer.ports.service import Moment
from spotsurfer.state import jobs as rows
from spotsurfer.state import observations, timeline
from spotsurfer.state.observations import NoticeRow
from spotsurfer.store.head_logs import HeadLogs

log = structlog.get_logger()
ADVICE_SECONDS = 1800.0  # cool-down of a pool that the cloud advises to leave, or a move would lead back to it
REMEMBERED = 1000  # messages that could not be read, so that each is logged once


@dataclass(frozen=True, slots=True)
class DatedNotice:
    """A notice about a machine, at a time on our clock. `seconds_left`: until it goes; None = unknown."""

    sign: str
    at: datetime
    text: str
    seconds_left: float | None = None


class InterruptionEvents:
    """One per controller; used by the tick's thread only."""

    def __init__(self, engine: Engine, clouds: Clouds, heads: HeadLogs) -> None:
        self._engine = engine
        self._clouds = clouds
        self._heads = heads
        self._unreadable: set[str] = set()

    def look(self, provider: Provider, now: datetime) -> bool:
        """Read a cloud's queue and record the new notices; True if its listing has changed.

        Raises ProviderError if the queue can't be read, or if a message can't be settled: then it comes again.
        """
        messages = provider.witness.read() if provider.witness is not None else ()
        if provider.witness is None or not messages:
            return False
        for unreadable in {m.unreadable for m in messages if m.unreadable} - self._unreadable:
            if len(self._unreadable) >= REMEMBERED:
                self._unreadable.clear()
            self._unreadable.add(unreadable)
            log.warning("witness.unreadable", error=unreadable)
        readable = [message for message in messages if not message.unreadable]
        said = [s for message in readable for s in message.notices]
        with self._engine.begin() as connection:
            self._record(connection, [s for s in said if s.sign is not NoticeKind.STATE], now)
        if readable:
            provider.witness.settle(readable)
        return any(s.sign is NoticeKind.STATE for s in said)

    def _record(self, c: Connection, said: Iterable[Notice], now: datetime) -> None:
        owners = rows.attempts_with_machines(c)
        for s in said:
            at = now - timedelta(seconds=s.age_seconds)
            owner = owners.get(s.instance)
            if owner is None:  # another family's, or ordered a moment ago and not in the table yet
                observations.add_notice(c, NoticeRow(s.instance, s.sign, at, s.text))
                continue
            seconds = self._clouds.capabilities(owner.pool).notice_seconds
            left = max(seconds - s.age_seconds, 0.0) if s.sign is NoticeKind.INTERRUPTION else None
            self.note(c, owner, DatedNotice(s.sign, at, s.text, left), now)

    def note(self, c: Connection, attempt: Attempt, said: DatedNotice, now: datetime) -> bool:
        """Record one notice about an attempt's machine; False if it was known."""
        machine = attempt.instance or attempt.token  # an agent may report before we recorded its instance
        if not observations.add_notice(c, NoticeRow(machine, said.sign, said.at, said.text)):
            return False
        data: dict[str, str | int | float | bool | None] = {"kind": said.sign, "seconds_left": said.seconds_left}
        timeline.add(c, Moment(now, attempt.job, attempt.number, str(Kind.NOTICE), said.text, data))
        reaction = self._clouds.capabilities(attempt.pool).rebalance if said.sign == NoticeKind.REBALANCE else ""
        if reaction == "move":
            until = now + timedelta(seconds=ADVICE_SECONDS)
            observations.set_cooldown(c, Cooldown(attempt.pool, attempt.market, until, 1, said.text))
        if reaction == "checkpoint" and attempt.state in HOLDS:
            self._ask_to_save(c, rows.load_job(c, attempt.job), now)
        return True

    def _ask_to_save(self, c: Connection, job: Job, now: datetime) -> None:
        """Ask for a checkpoint as the user would. It is optional: if the head can't be read now, none is asked for."""
        try:
            wanted = self._heads.seen(job.id, now, fresh=False).sequence + 1
        except (StoreError, ProtocolError) as e:
            log.warning("observe.trouble", trouble=f"no checkpoint of {job.id} is asked for: {e}")
            return
        if job.spec.engine != "none":
            rows.save_job(c, replace(job, save_at_least=max(job.save_at_least, wanted)))
