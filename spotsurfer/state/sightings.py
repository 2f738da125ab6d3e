"""What was said of machines, by whichever witness: one row for an instance and a sign, whoever says it first."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects.sqlite import insert

from spotsurfer.state.schema import sighting as S

KEPT_HOURS = 48  # after which an instance that was to be taken is gone from listings, too


@dataclass(frozen=True, slots=True)
class Row:
    """`at` is on our clock, and as early as the event may have been."""

    instance: str
    sign: str
    at: datetime
    text: str


def add(connection: Connection, row: Row) -> bool:
    """Write it down; False where it was known already, then nothing changes. Old ones go."""
    oldest = (row.at - timedelta(hours=KEPT_HOURS)).isoformat()
    connection.execute(delete(S).where(S.c.at < oldest))
    values = {"instance": row.instance, "sign": row.sign, "at": row.at.isoformat(), "text": row.text}
    return connection.execute(insert(S).values(**values).on_conflict_do_nothing()).rowcount == 1


def of(connection: Connection, instances: Collection[str]) -> dict[str, list[Row]]:
    """What was said of these, by instance, oldest first. A region's queue tells of everybody's machines."""
    found: dict[str, list[Row]] = {}
    for r in connection.execute(select(S).where(S.c.instance.in_(instances)).order_by(S.c.at)):
        found.setdefault(r.instance, []).append(Row(r.instance, r.sign, datetime.fromisoformat(r.at), r.text))
    return found
