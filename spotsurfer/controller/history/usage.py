"""Usage reported by agents as time windows, and since when jobs do nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from spotsurfer_wire.messages import Report
from spotsurfer_wire.usage import KEPT, WINDOW_SECONDS, Window
from sqlalchemy import Engine

from spotsurfer.core.facts.attempt_view import holder_of
from spotsurfer.core.scheduling.stuck import makes_progress
from spotsurfer.core.scheduling.suspension import followed, works
from spotsurfer.model.job import Attempt, JobId, JobSpec
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


def resident_bytes(report: Report) -> int:
    """What the job holds of its machine's memory by its newest window, what still arrives included; 0 = not known."""
    window = lately(report)
    return 0 if window is None else int(window.resident_bytes + (window.arriving_bytes or 0.0))


# ---- Quiet times: since when a job does not work, for jobs with a limit on idle time or on time without progress

AGAIN = timedelta(seconds=30)  # the last windows are read again: they have grown
# Returns the number of connections to a job's ports, and when the last one was closed.
Connections = Callable[[JobId], tuple[int, datetime | None]]


class QuietTimes:
    """Remembers since when jobs are quiet by one measure; after a restart it reads the database."""

    def __init__(
        self, engine: Engine, limit: Callable[[JobSpec], float | None], at_work: Callable[[JobSpec, Window], bool]
    ) -> None:
        """`limit`: seconds that a job's user sets, None = nobody asks. `at_work`: whether it did something in a window."""
        self._engine, self._limit, self._at_work = engine, limit, at_work
        self._known: dict[tuple[str, int], QuietSeen | None] = {}

    def of(self, snapshot: Snapshot, changed: Collection[tuple[str, int]], now: datetime) -> dict[JobId, QuietSeen]:
        """The quiet jobs. `changed`: attempts with a new report that is in the database."""
        some = [s for s in snapshot.jobs if self._limit(s.job.spec) is not None]
        asked = {s.job.id: (s, a) for s in some if (a := holder_of(s.attempts)) is not None}
        wanted = {(str(a.job), int(a.number)) for _, a in asked.values()}
        self._known = {k: v for k, v in self._known.items() if k in wanted}
        for seen, holder in asked.values():
            key = (str(holder.job), int(holder.number))
            if key not in self._known or key in changed:
                self._known[key] = self._followed(seen.job.spec, holder, self._known.get(key), now)
        return {job: quiet for job, (_, a) in asked.items() if (quiet := self._known[str(job), int(a.number)]) is not None}

    def _followed(self, spec: JobSpec, holder: Attempt, before: QuietSeen | None, now: datetime) -> QuietSeen | None:
        wanted = timedelta(seconds=self._limit(spec) or 0.0)
        since = now - wanted - AGAIN if before is None else before.until - AGAIN
        with self._engine.connect() as connection:
            found = usage_history.read(connection, holder.job, since)
        windows = ((u.at, u.window) for u in found if u.attempt == holder.number)
        return followed(before, windows, lambda w: self._at_work(spec, w))


class Idleness:
    """Tells which jobs are idle, and which make no progress."""

    def __init__(self, engine: Engine, connections: Connections = lambda _: (0, None)) -> None:
        self.connections = connections
        self._idle = QuietTimes(engine, lambda spec: spec.idle_seconds, works)
        self._still = QuietTimes(engine, lambda spec: spec.stuck_seconds, makes_progress)

    def noted(self, snapshot: Snapshot, changed: Collection[tuple[str, int]], now: datetime) -> Snapshot:
        """The snapshot with since when jobs are quiet. `changed`: attempts with a new report that is in the database."""
        idle, still = self._idle.of(snapshot, changed, now), self._still.of(snapshot, changed, now)
        if not (idle or still):
            return snapshot

        def noted(seen: JobSeen) -> JobSeen:
            quiet, job = idle.get(seen.job.id), seen.job.id
            if quiet is not None:
                count, closed = self.connections(job)
                quiet = replace(quiet, connections=count, last_closed_at=closed)
            return replace(seen, quiet=quiet, still=still.get(job)) if quiet or job in still else seen

        return replace(snapshot, jobs=[noted(s) for s in snapshot.jobs])
