"""Usage reported by agents as time windows, and how long jobs have been idle."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from spotsurfer_wire.messages import Report
from spotsurfer_wire.usage import KEPT, WINDOW_SECONDS, Window
from sqlalchemy import Engine

from spotsurfer.core.facts.attempt_view import holder_of
from spotsurfer.core.scheduling.suspension import followed
from spotsurfer.model.job import Attempt, JobId
from spotsurfer.model.snapshot import JobSeen, QuietSeen, Snapshot
from spotsurfer.state import usage_history

# ---- Usage windows: an agent's windows, placed on our clock (pure)

OLD_SECONDS = (KEPT + 1) * WINDOW_SECONDS * 12  # a job that stood still for an hour has old windows; more is nonsense
ANY_TIME = datetime(2000, 1, 1, tzinfo=UTC)  # if only the windows matter


def windows(report: Report, heard_at: datetime, known: int = -1) -> Iterator[tuple[datetime, Window]]:
    """Each window with its start time, from number `known` on; unreadable or impossible ones are left out."""
    if report.usage is None:
        return
    for row in report.usage.rows[-KEPT - 1 :]:
        try:
            window = Window.from_row(row)
        except ValueError:
            continue
        age = report.usage.at - window.number * WINDOW_SECONDS
        if window.number >= known and 0 <= age <= OLD_SECONDS:
            yield heard_at - timedelta(seconds=age), window


def newest(report: Report | None) -> int:
    """Number of the newest window in a report; -1 = none."""
    found = [w.number for _, w in windows(report, ANY_TIME)] if report is not None else []
    return max(found, default=-1)


def lately(report: Report | None) -> Window | None:
    """The newest window that covers some seconds."""
    if report is None:
        return None
    found = [w for _, w in windows(report, ANY_TIME)]
    return next((w for w in reversed(found) if w.seconds >= WINDOW_SECONDS / 2), found[-1] if found else None)


# ---- Idleness: since when a job has neither usage nor connections, for jobs with a limit on idle time

AGAIN = timedelta(seconds=30)  # the last windows are read again: they have grown
# Returns the number of connections to a job's ports, and when the last one was closed.
Connections = Callable[[JobId], tuple[int, datetime | None]]


class Idleness:
    """Remembers since when jobs are idle; after a restart it reads the database."""

    def __init__(self, engine: Engine, connections: Connections = lambda _: (0, None)) -> None:
        self._engine = engine
        self.connections = connections
        self._known: dict[tuple[str, int], QuietSeen | None] = {}

    def noted(self, snapshot: Snapshot, changed: Collection[tuple[str, int]], now: datetime) -> Snapshot:
        """The snapshot with the idle times of jobs. `changed`: attempts with a new report that is in the database."""
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
            before = self._known.get(key)
            wanted = timedelta(seconds=seen.job.spec.idle_seconds or 0.0)
            since = now - wanted - AGAIN if before is None else before.until - AGAIN
            with self._engine.connect() as connection:
                found = usage_history.read(connection, seen.job.id, since)
            windows = ((u.at, u.window) for u in found if u.attempt == holder.number)
            self._known[key] = followed(before, windows, seen.job.spec)
        quiet = self._known[key]
        count, closed = self.connections(seen.job.id)
        return seen if quiet is None else replace(seen, quiet=replace(quiet, connections=count, last_closed_at=closed))
