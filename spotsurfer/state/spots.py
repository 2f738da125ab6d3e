"""When spot could be had, by pool: what purchase policies look back on, and learn from."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects.sqlite import insert as upsert

from spotsurfer.model.snapshot import SpotSeen
from spotsurfer.state.schema import spot_seen as S


def add(connection: Connection, pool: str, seen: SpotSeen) -> None:
    """From then on it was so."""
    values = {"pool": pool, "at": seen.at.isoformat(), "up": seen.up}
    connection.execute(upsert(S).values(**values).on_conflict_do_update(index_elements=["pool", "at"], set_={"up": seen.up}))


def since(connection: Connection, oldest: datetime) -> dict[str, list[SpotSeen]]:
    """By pool, oldest first."""
    found: dict[str, list[SpotSeen]] = {}
    for r in connection.execute(select(S).where(S.c.at >= oldest.isoformat()).order_by(S.c.pool, S.c.at)):
        found.setdefault(r.pool, []).append(SpotSeen(datetime.fromisoformat(r.at), r.up))
    return found


def prune(connection: Connection, oldest: datetime) -> None:
    """What is older is forgotten."""
    connection.execute(delete(S).where(S.c.at < oldest.isoformat()))
