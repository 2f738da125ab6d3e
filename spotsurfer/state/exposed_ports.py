"""Which port of the controller's host stands for a port of a job."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, and_, delete, insert, select

from spotsurfer.state.schema import front as F


def listens(connection: Connection, job: str) -> dict[str, int]:
    """By name of the job's port."""
    return {r.name: r.listens for r in connection.execute(select(F).where(F.c.job == job))}


def all_listens(connection: Connection) -> dict[tuple[str, str], int]:
    """Of all jobs, by job and name."""
    return {(r.job, r.name): r.listens for r in connection.execute(select(F))}


def taken(connection: Connection) -> frozenset[int]:
    """All that are given out."""
    return frozenset(connection.execute(select(F.c.listens)).scalars())


def give(connection: Connection, job: str, name: str, port: int) -> None:
    """Raises sqlalchemy.exc.IntegrityError where one of both has one already."""
    connection.execute(insert(F).values(job=job, name=name, listens=port))


def take_back(connection: Connection, job: str, name: str) -> None:
    """Of one port."""
    connection.execute(delete(F).where(and_(F.c.job == job, F.c.name == name)))


def forget_all_but(connection: Connection, jobs: Collection[str]) -> None:
    """Other jobs have no ports any more."""
    connection.execute(delete(F).where(F.c.job.not_in(list(jobs))))
