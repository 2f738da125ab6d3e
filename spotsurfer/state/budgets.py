"""Budgets of several jobs in the database: those that were set by command, and what each one told."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects.sqlite import insert as upsert

from spotsurfer.model.budgets import USED_UP, Budget, Per
from spotsurfer.state.schema import budget as B
from spotsurfer.state.schema import budget_told as T

Key = tuple[str, Per]  # scope, and in which time


class SetBudget(NamedTuple):
    """A budget that was set by command. `at`: ISO 8601 in UTC."""

    budget: Budget
    at: str
    by: str


def live(connection: Connection) -> dict[Key, SetBudget]:
    """All that were set by command."""
    found: dict[Key, SetBudget] = {}
    for r in connection.execute(select(B)):
        one = Budget(r.scope, r.usd_micros, Per(r.per), tuple(r.warn_at))
        found[one.scope, one.per] = SetBudget(one, r.set_at, r.set_by)
    return found


def put(connection: Connection, budget: Budget, at: datetime, by: str) -> None:
    """Keep a budget instead of the one with its scope and time."""
    key = {"scope": budget.scope, "per": str(budget.per)}
    values = {"usd_micros": budget.usd_micros, "warn_at": list(budget.warn_at), "set_at": at.isoformat(), "set_by": by}
    connection.execute(upsert(B).values(**key, **values).on_conflict_do_update(index_elements=list(key), set_=values))


def remove(connection: Connection, scope: str, per: Per) -> bool:
    """Forget a budget that was set by command; whether there was one. It holds nothing any more, even if it is set anew."""
    connection.execute(delete(T).where(T.c.scope == scope, T.c.per == str(per), T.c.share == USED_UP))
    return bool(connection.execute(delete(B).where(B.c.scope == scope, B.c.per == str(per))).rowcount)


def tell(connection: Connection, budget: Budget, begins: datetime | None, shares: Iterable[int], at: datetime) -> None:
    """Note that a budget told of these shares."""
    values = {"usd_micros": budget.usd_micros, "at": at.isoformat()}
    for share in shares:
        key = {"scope": budget.scope, "per": str(budget.per), "begins": _moment(begins), "share": share}
        connection.execute(upsert(T).values(**key, **values).on_conflict_do_update(index_elements=list(key), set_=values))


def told(connection: Connection, times: Iterable[tuple[Budget, datetime | None]]) -> dict[Key, frozenset[int]]:
    """What each budget told of its present time, at its amount or a larger one."""
    wanted = {(b.scope, str(b.per), _moment(begins)): b for b, begins in times}
    found: dict[Key, set[int]] = {}
    for r in connection.execute(select(T).where(T.c.begins.in_({begins for _, _, begins in wanted}))):
        b = wanted.get((r.scope, r.per, r.begins))
        if b is not None and b.usd_micros <= r.usd_micros:
            found.setdefault((b.scope, b.per), set()).add(r.share)
    return {key: frozenset(shares) for key, shares in found.items()}


def _moment(begins: datetime | None) -> str:
    return "" if begins is None else begins.isoformat()
