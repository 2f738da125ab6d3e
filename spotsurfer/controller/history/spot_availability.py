"""Records when spot capacity was available. No cloud reports that: refusals of pools and running spot machines show it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import Engine

from spotsurfer.core.scheduling.placement import cooling
from spotsurfer.model.job import AttemptState
from spotsurfer.model.market import Market, Pool
from spotsurfer.model.snapshot import AgentSeen, Snapshot, SpotSeen
from spotsurfer.state import observations

KEPT = timedelta(days=100)  # in the database
LOOKED_BACK = timedelta(days=32)  # in memory: no policy needs more to judge a market
ALIVE = frozenset({AttemptState.BOOTING, AttemptState.READY, AttemptState.RESTORING, AttemptState.RUNNING})


class SpotAvailability:
    """One per controller. It reads the past from the database once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._past: dict[str, list[SpotSeen]] | None = None
        self._pruned: datetime | None = None

    def noted(self, snapshot: Snapshot, now: datetime) -> Snapshot:
        """The snapshot with the record, updated by the present state of the pools."""
        past, state = self._load(now), spot_now(snapshot, now)
        last = {pool: seen[-1].up for pool, seen in past.items() if seen}  # a pool that was never seen is unknown
        changed = [(p, up) for p, up in state.items() if last.get(str(p)) != up]
        if changed:
            with self._engine.begin() as connection:
                for pool, up in changed:
                    seen = SpotSeen(now, up)
                    past.setdefault(str(pool), []).append(seen)
                    observations.add_spot_seen(connection, str(pool), seen)
        return replace(snapshot, spot_seen={p: tuple(past[str(p)]) for p in state if str(p) in past})

    def _load(self, now: datetime) -> dict[str, list[SpotSeen]]:
        if self._past is None or self._pruned is None or now - self._pruned > timedelta(days=1):
            with self._engine.begin() as connection:
                observations.prune_spot_seen(connection, now - KEPT)
                self._past = observations.spot_seen_since(connection, now - LOOKED_BACK)
            self._pruned = now
        return self._past


def spot_now(snapshot: Snapshot, now: datetime) -> dict[Pool, bool | None]:
    """Each pool with a spot offer: True where a spot machine runs, False where it refuses or takes machines, None = unknown."""
    spot = ((seen, a) for seen in snapshot.jobs for a in seen.attempts if a.market is Market.SPOT and a.state in ALIVE)
    running = {a.pool for seen, a in spot if not a.reclaimed and not _noticed(seen.agents.get(a.number))}
    found: dict[Pool, bool | None] = {}
    for offer in snapshot.offers:
        if offer.market is Market.SPOT:
            refused = cooling(offer, snapshot.cooldowns, now) is not None
            found[offer.pool] = True if offer.pool in running else False if refused else None
    return found


def _noticed(agent: AgentSeen | None) -> bool:
    return agent is not None and agent.notice_id is not None
