"""What an hour of progress costs in each pool, whatever it takes to get there included. Pure.

    price + (launch + move + time + q * what a loss costs) / l,

with l the expected life (hours) of a machine from the pool's present spell on, at most what is left to do, and q the chance
that it is lost before. A loss costs a restart, and a move or the wait for the pool, whichever is less. Time that passes
without progress costs what an hour to spare is worth to the job: nothing where there is no deadline. A launch is reckoned
dearer than it is (`CAUTION`), for hazards are believed, not known, and who believes them hops too often.
"""

from __future__ import annotations

from collections.abc import Sequence

from spotsurfer.ports.placement import PlaceView, PoolView
from spotsurfer.ports.purchase import Buy
from spotsurfer_policies.roaming import HOUR
from spotsurfer_policies.weighing import hazards_of, life_of

HORIZON_SECONDS = 24 * HOUR  # of work: nobody knows more of a pool's future, or how much is left
LEAST_SECONDS, LEAST_HOURS = 600.0, 0.05  # of work that is reckoned with, of a life
CAUTION = 0.5  # of a restart
WAIT_SECONDS = 12 * HOUR  # at most, for a pool to come back
HALF_SEEN = HOUR  # a pool that nothing is known of was free for an hour and for an hour it was not


def rates(view: PlaceView, hour_usd: float = 0.0) -> list[float]:
    """USD for an hour of progress on spot, one value a pool; of pools that are not free the wait for them counts, too.

    `hour_usd`: what an hour without progress costs, beside what is paid for a machine.
    """
    free, none = hazards_of(tuple((p.up, p.down, p.band) for p in view.pools))
    restart, horizon = view.restart_seconds / HOUR, _horizon(view)
    mean = _mean_price(view.pools)
    found = []
    for i, p in enumerate(view.pools):
        life, lost = life_of(free[i], 0.0 if p.free is False else p.spell_seconds, horizon)
        here = view.held is Buy.SPOT and i == view.at
        begin = _begin(view, i, here) + (0.0 if here else restart * hour_usd)
        back = life_of(none[i], 0.0, WAIT_SECONDS)[0] / HOUR
        loss = restart * mean * (1 + CAUTION) + min(max(q.move_usd for q in view.pools), hour_usd * back)
        wait = life_of(none[i], p.spell_seconds, WAIT_SECONDS)[0] / HOUR if p.free is False else 0.0
        extra = (begin + hour_usd * wait + lost * loss) / max(life / HOUR, LEAST_HOURS)
        found.append(_scarce(p) * (p.spot_usd_per_hour + extra))
    return found


def _begin(view: PlaceView, pool: int, here: bool) -> float:
    """USD until the first progress there."""
    p = view.pools[pool]
    hours = view.owed_seconds / HOUR if here else view.restart_seconds / HOUR * (1 + CAUTION)
    return hours * p.spot_usd_per_hour + (0.0 if view.at in (None, pool) else p.move_usd)


def _horizon(view: PlaceView) -> float:
    """Seconds of work that lives are reckoned to."""
    work = HORIZON_SECONDS if view.work_left_seconds is None else view.work_left_seconds
    return max(min(work, HORIZON_SECONDS), LEAST_SECONDS)


def _mean_price(pools: Sequence[PoolView]) -> float:
    """By how much of the time each pool was free."""
    share = [(sum(p.up.watched) + HALF_SEEN) / (sum(p.up.watched) + sum(p.down.watched) + 2 * HALF_SEEN) for p in pools]
    return sum(s * p.spot_usd_per_hour for s, p in zip(share, pools, strict=True)) / sum(share)


def _scarce(pool: PoolView) -> float:
    """An order in vain costs time: score 10 counts as it is, 1 by half as much again; 5 where nobody knows."""
    score = min(max(5 if pool.score is None else pool.score, 1), 10)
    return 1 + 0.5 * (10 - score) / 9 if pool.free is None else 1.0
