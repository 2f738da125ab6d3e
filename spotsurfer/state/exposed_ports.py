"""The table of exposed ports: the port of the controller's host for each port of a job."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, and_, delete, insert, select

from spotsurfer.state.schema import front as F


def listens(connection: Connection, job: str) -> dict[str, int]:
    """A job's host ports, by name of the job's port."""
    return {r.name: r.listens for r in connection.execute(select(F).where(F.c.job == job))}


def all_listens(connection: Connection) -> dict[tuple[str, str], int]:
    """The host ports of all jobs, by job and name."""
    return {(r.job, r.name): r.listens for r in connection.execute(select(F))}


def taken(connection: Connection) -> frozenset[int]:
    """All assigned host ports."""
    return frozenset(connection.execute(select(F.c.listens)).scalars())


def give(connection: Connection, job: str, name: str, port: int) -> None:
    """Assign a host port. Raises sqlalchemy.exc.IntegrityError if either port is assigned already."""
    connection.execute(insert(F).values(job=job, name=name, listens=port))


def take_back(connection: Connection, job: str, name: str) -> None:
    """Remove the assignment of one port."""
    connection.execute(delete(F).where(and_(F.c.job == job, F.c.name == name)))


def forget_all_but(connection: Connection, jobs: Collection[str]) -> None:
    """Remove the assignments of all other jobs."""
    connection.execute(delete(F).where(F.c.job.not_in(list(jobs))))
