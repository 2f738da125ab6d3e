"""The journal of actions: each intent is written before its effect."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, delete, insert, select, update

from spotsurfer.state.schema import journal as T

KEEP = 10_000


def begin(connection: Connection, action: str, now: datetime) -> int:
    """Record an action that is about to begin; returns the number of the entry."""
    done = connection.execute(insert(T).values(action=action, begun_at=now.isoformat()))
    key = done.inserted_primary_key
    assert key is not None
    return int(key[0])


def finish(connection: Connection, number: int, outcome: str, now: datetime) -> None:
    """Record the outcome of an action."""
    values = {"finished_at": now.isoformat(), "outcome": outcome}
    connection.execute(update(T).where(T.c.number == number).values(**values))


def unfinished(connection: Connection) -> list[tuple[int, str]]:
    """Entries that a crash left open, oldest first."""
    rows = connection.execute(select(T.c.number, T.c.action).where(T.c.finished_at.is_(None)).order_by(T.c.number))
    return [(int(n), str(a)) for n, a in rows]


def prune(connection: Connection) -> None:
    """Forget finished entries beyond the newest KEEP."""
    newest = connection.execute(select(T.c.number).order_by(T.c.number.desc()).limit(1)).scalar() or 0
    connection.execute(delete(T).where(T.c.number <= newest - KEEP, T.c.finished_at.is_not(None)))
