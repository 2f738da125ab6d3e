"""Rows that were read before: a list of all jobs decodes only what changed since the list before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spotsurfer_wire.messages import Report
from sqlalchemy import Connection, select, tuple_

from spotsurfer.model.job import Attempt, Job, JobId
from spotsurfer.state import jobs as rows
from spotsurfer.state import observations
from spotsurfer.state.schema import attempt as A
from spotsurfer.state.schema import job as J
from spotsurfer.state.schema import usage as U
from spotsurfer.state.spoilt_rows import decoded

ROWS_MAX = 10_000  # of each kind, about 5 KB each: what is beyond is read at each list
AT_ONCE = 10_000  # names in one query
Known = dict[Any, tuple[Any, Any]]  # by name: the mark under which it was read, and what was read


class RememberedRows:
    """Jobs, attempts and last reports as of now. Each row has a mark that changes whenever it does: it is read anew then.

    May be called from several threads.
    """

    def __init__(self) -> None:
        self._jobs: Known = {}
        self._attempts: Known = {}
        self._reports: Known = {}

    def jobs(self, connection: Connection, owner: str | None = None, tasks: bool = True) -> list[Job]:
        """Every job, or every job of an owner, newest first; without `tasks` those that are in no array."""
        query = select(J.c.id, J.c.version).order_by(J.c.submitted_at.desc(), J.c.id)
        query = query if tasks else query.where(J.c.array == "")
        there = connection.execute(query if owner is None else query.where(J.c.owner == owner)).all()

        def read(some: list[Any]) -> Known:
            found = decoded(connection, select(J).where(J.c.id.in_(some)), [J.c.id], rows.job_from_row)
            return {job.id: (job.version, job) for job in found}

        return list(_now(self._jobs, {id: version for id, version in there}, read).values())

    def attempts(self, connection: Connection, jobs: Sequence[JobId]) -> dict[JobId, list[Attempt]]:
        """Attempts of these jobs, oldest first."""
        query = select(A.c.job, A.c.number, A.c.version).where(A.c.job.in_(list(jobs))).order_by(A.c.job, A.c.number)
        there = connection.execute(query).all()

        def read(some: list[Any]) -> Known:
            query = rows.ATTEMPTS.where(tuple_(A.c.job, A.c.number).in_(some))
            found = decoded(connection, query, [A.c.job, A.c.number], rows.attempt_from_row)
            return {(a.job, a.number): (a.version, a) for a in found}

        found: dict[JobId, list[Attempt]] = {j: [] for j in jobs}
        for (job, _), one in _now(self._attempts, {(job, n): version for job, n, version in there}, read).items():
            found[job].append(one)
        return found

    def reports(self, connection: Connection, jobs: Sequence[JobId]) -> dict[tuple[str, int], Report]:
        """The last report of each attempt of these jobs."""
        marks = (U.c.job, U.c.attempt, U.c.at, U.c.cpu_seconds, U.c.saves, U.c.frozen_seconds)
        there = connection.execute(select(*marks).where(U.c.job.in_(list(jobs)))).all()

        def read(some: list[Any]) -> Known:
            found = connection.execute(select(*marks, U.c.doc).where(tuple_(U.c.job, U.c.attempt).in_(some)))
            return {(job, n): (tuple(mark), observations.report_of(doc)) for job, n, *mark, doc in found}

        told = _now(self._reports, {(job, n): tuple(mark) for job, n, *mark in there}, read)
        return {key: report for key, report in told.items() if report is not None}


def _now(known: Known, marks: dict[Any, Any], read: Callable[[list[Any]], Known]) -> dict[Any, Any]:
    """What has these marks, in their order, with what was read anew; rows that went meanwhile are left out."""
    missing = [name for name, mark in marks.items() if known.get(name, (None,))[0] != mark]
    fresh: Known = {}
    for at in range(0, len(missing), AT_ONCE):
        fresh |= read(missing[at : at + AT_ONCE])
    found = {name: fresh.get(name) or known.get(name) for name in marks}
    if len(known) + len(fresh) <= ROWS_MAX:
        known.update(fresh)
    else:
        known.update({name: row for name, row in fresh.items() if name in known})
    return {name: row[1] for name, row in found.items() if row is not None}
