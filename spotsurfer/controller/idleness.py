"""How long jobs have done nothing: windows of usage and connections, for jobs whose users want to know."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import Engine

from spotsurfer.core.case import holder_of
from spotsurfer.core.idle import followed
from spotsurfer.model.ids import JobId
from spotsurfer.model.job import Attempt
from spotsurfer.model.snapshot import JobSeen, QuietSeen, Snapshot
from spotsurfer.state import usages

AGAIN = timedelta(seconds=30)  # the last windows are read again: they have grown
# How many connections a job's front has, and when the last one was closed.
Connections = Callable[[JobId], tuple[int, datetime | None]]


class Idleness:
    """Remembers since when; after a restart the database does."""

    def __init__(self, engine: Engine, connections: Connections = lambda _: (0, None)) -> None:
        self._engine = engine
        self.connections = connections
        self._known: dict[tuple[str, int], QuietSeen | None] = {}

    def noted(self, snapshot: Snapshot, changed: Collection[tuple[str, int]], now: datetime) -> Snapshot:
        """The snapshot with what is known of idle jobs. `changed`: whose reports are new and in the database."""
        some = (s for s in snapshot.jobs if s.job.spec.idle_seconds is not None)
        asked = {s.job.id: a for s in some if (a := holder_of(s.attempts)) is not None}
        if not asked:
            self._known.clear()
            return snapshot
        self._known = {k: v for k, v in self._known.items() if (a := asked.get(JobId(k[0]))) is not None and a.number == k[1]}
        return replace(snapshot, jobs=[self._noted(s, asked.get(s.job.id), changed, now) for s in snapshot.jobs])

    def _noted(self, seen: JobSeen, holder: Attempt | None, changed: Collection[tuple[str, int]], now: datetime) -> JobSeen:
        if holder is None:
            return seen
        key = (str(holder.job), int(holder.number))
        if key not in self._known or key in changed:
            self._known[key] = self._read(seen, holder, self._known.get(key), now)
        quiet = self._known[key]
        count, closed = self.connections(seen.job.id)
        return seen if quiet is None else replace(seen, quiet=replace(quiet, connections=count, last_closed_at=closed))

    def _read(self, seen: JobSeen, holder: Attempt, before: QuietSeen | None, now: datetime) -> QuietSeen | None:
        wanted = timedelta(seconds=seen.job.spec.idle_seconds or 0.0)
        since = now - wanted - AGAIN if before is None else before.until - AGAIN
        with self._engine.connect() as connection:
            found = usages.read(connection, seen.job.id, since)
        return followed(before, ((u.at, u.window) for u in found if u.attempt == holder.number), seen.job.spec)
