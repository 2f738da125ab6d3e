"""Tokens and the audit log in the database."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, insert, select, update

from spotsurfer.model.access import Audited, Role, Token
from spotsurfer.state.schema import audit as A
from spotsurfer.state.schema import token as T

PUBLIC = [T.c[f.name] for f in dataclasses.fields(Token)]


def add_token(connection: Connection, token: Token, digest: str) -> None:
    """Keep a token; `digest`: of its secret, in hexadecimal digits."""
    connection.execute(insert(T).values(**dataclasses.asdict(token) | {"role": str(token.role), "digest": digest}))


def tokens(connection: Connection) -> list[Token]:
    """All of them, the newest first."""
    rows = connection.execute(select(*PUBLIC).order_by(T.c.made_at.desc(), T.c.id)).mappings()
    return [_token(r) for r in rows]


def find_token(connection: Connection, id: str) -> tuple[Token, str] | None:
    """One token and the digest of its secret."""
    row = connection.execute(select(T).where(T.c.id == id)).mappings().first()
    return None if row is None else (_token({c.name: row[c.name] for c in PUBLIC}), str(row["digest"]))


def revoke(connection: Connection, id: str, at: str) -> None:
    """It opens nothing from now on; one that was revoked before keeps its time."""
    connection.execute(update(T).where(T.c.id == id, T.c.revoked_at.is_(None)).values(revoked_at=at))


def used(connection: Connection, id: str, at: str) -> None:
    """Note that it was shown."""
    connection.execute(update(T).where(T.c.id == id).values(used_at=at))


def _token(row: Any) -> Token:
    return Token(**{**row, "role": Role(row["role"])})


def add_line(connection: Connection, line: Audited) -> None:
    """Append a line to the audit log."""
    connection.execute(insert(A).values(**dataclasses.asdict(line)))


def lines(connection: Connection, since: datetime | None, who: str | None, job: str | None, last: int) -> Sequence[Audited]:
    """The `last` lines of these, oldest first."""
    query = select(*(A.c[f.name] for f in dataclasses.fields(Audited))).order_by(A.c.number.desc()).limit(last)
    if since is not None:
        query = query.where(A.c.at >= since.astimezone(UTC).isoformat())
    if who is not None:
        query = query.where(A.c.who == who)
    if job is not None:
        query = query.where(A.c.job == job)
    return [Audited(**r) for r in connection.execute(query).mappings()][::-1]
