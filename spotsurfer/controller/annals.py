"""What became of the machines that are gone, of all jobs: added up once, then machine by machine as they end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection

from spotsurfer.core.evidence import fates_of
from spotsurfer.model.ids import AttemptNumber, JobId
from spotsurfer.model.job import OVER, Attempt
from spotsurfer.model.lives import Fates
from spotsurfer.model.market import Market, Pool
from spotsurfer.state import jobs as rows

KEPT = timedelta(days=100)  # what ended longer ago tells little of how a pool is now


class Annals:
    """One a controller. A look at jobs whose machines all live, or were counted, asks the database nothing."""

    def __init__(self) -> None:
        self._past: dict[tuple[Pool, Market], Fates] | None = None
        self._alive: set[tuple[JobId, AttemptNumber]] = set()

    def past(
        self, connection: Connection, attempts: Mapping[JobId, Sequence[Attempt]], now: datetime
    ) -> Mapping[tuple[Pool, Market], Fates]:
        """Of machines that are gone. `attempts`: all of the open jobs."""
        alive = {(a.job, a.number) for some in attempts.values() for a in some if a.state not in OVER}
        if self._past is None:
            self._past = fates_of(rows.ended_since(connection, now - KEPT), now)
        else:
            self._add(self._ended(connection, attempts, alive), now)
        self._alive = alive
        return dict(self._past)

    def _ended(
        self, connection: Connection, attempts: Mapping[JobId, Sequence[Attempt]], alive: set[tuple[JobId, AttemptNumber]]
    ) -> list[Attempt]:
        """Machines that lived at the last look and do not any more; those of jobs that have closed are asked for at once."""
        gone = self._alive - alive
        closed = sorted({job for job, _ in gone} - set(attempts))
        known = {**attempts, **(rows.attempts(connection, closed) if closed else {})}
        return [a for job in {j for j, _ in gone} for a in known[job] if (a.job, a.number) in gone]

    def _add(self, ended: Sequence[Attempt], now: datetime) -> None:
        assert self._past is not None
        for key, fates in fates_of(ended, now).items():
            self._past[key] = self._past.get(key, Fates()) + fates
