"""Rows that were read before: a list of all jobs decodes only what changed since the list before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spotsurfer_wire.messages import Report
from sqlalchemy import Connection, select, tuple_

from spotsurfer.model.job import Attempt, Job, JobId
from spotsurfer.state import jobs as rows
from spotsurfer.state import observations
from spotsurfer.state.schema import attempt as A
from spotsurfer.state.schema import job as J
from spotsurfer.state.schema import usage as U

ROWS_MAX = 100_000  # of each kind; beyond that all are forgotten
AT_ONCE = 10_000  # names in one query

Key = tuple[str, int]


class RememberedRows:
    """Jobs, attempts and last reports as of now. Each row has something that changes whenever it does: it is read anew then.

    May be called from several threads.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[int, Job]] = {}
        self._attempts: dict[Key, tuple[int, Attempt]] = {}
        self._reports: dict[Key, tuple[tuple[Any, ...], Report | None]] = {}

    def jobs(self, connection: Connection, owner: str | None = None) -> list[Job]:
        """Every job, or every job of an owner, newest first."""
        query = select(J.c.id, J.c.version).order_by(J.c.submitted_at.desc(), J.c.id)
        there = connection.execute(query if owner is None else query.where(J.c.owner == owner)).all()
        known = self._jobs = _bounded(self._jobs)
        for some in _pieces([id for id, version in there if known.get(id, (0,))[0] != version]):
            for row in connection.execute(select(J).where(J.c.id.in_(some))).mappings():
                known[row["id"]] = row["version"], rows.job_from_row(row)
        return [known[id][1] for id, _ in there if id in known]

    def attempts(self, connection: Connection, jobs: Sequence[JobId]) -> dict[JobId, list[Attempt]]:
        """Attempts of these jobs, oldest first."""
        query = select(A.c.job, A.c.number, A.c.version).where(A.c.job.in_(list(jobs))).order_by(A.c.job, A.c.number)
        there = connection.execute(query).all()
        known = self._attempts = _bounded(self._attempts)
        for some in _pieces([(job, n) for job, n, version in there if known.get((job, n), (0,))[0] != version]):
            for row in connection.execute(select(A).where(tuple_(A.c.job, A.c.number).in_(some))).mappings():
                known[row["job"], row["number"]] = row["version"], rows.attempt_from_row(row)
        found: dict[JobId, list[Attempt]] = {j: [] for j in jobs}
        for job, n, _ in there:
            if (job, n) in known:
                found[job].append(known[job, n][1])
        return found

    def reports(self, connection: Connection, jobs: Sequence[JobId]) -> dict[Key, Report]:
        """The last report of each attempt of these jobs."""
        marks = (U.c.at, U.c.cpu_seconds, U.c.saves, U.c.frozen_seconds)
        there = connection.execute(select(U.c.job, U.c.attempt, *marks).where(U.c.job.in_(list(jobs)))).all()
        known = self._reports = _bounded(self._reports)
        for some in _pieces([(job, n) for job, n, *mark in there if known.get((job, n), ((),))[0] != tuple(mark)]):
            asked = select(U.c.job, U.c.attempt, *marks, U.c.doc).where(tuple_(U.c.job, U.c.attempt).in_(some))
            for job, n, *mark, doc in connection.execute(asked):
                known[job, n] = tuple(mark), observations.report_of(doc)
        told = (((job, n), known[job, n][1]) for job, n, *_ in there if (job, n) in known)
        return {key: report for key, report in told if report is not None}


def _bounded(known: dict[Any, Any]) -> dict[Any, Any]:
    return known if len(known) < ROWS_MAX else {}


def _pieces(names: list[Any]) -> list[list[Any]]:
    return [names[at : at + AT_ONCE] for at in range(0, len(names), AT_ONCE)]
