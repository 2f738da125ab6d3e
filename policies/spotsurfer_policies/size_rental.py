"""How `surf` sizes the first run of a step: wait with a move until not having moved has cost as much as going there and back.

Ski rental on *regret*: for each pair of types the money lost by not being on the other since it last stopped holding the
job's memory or stopped being better, with memory and cores both in it. How much regret a move needs is learned for each pair
from whether earlier moves between them paid.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from spotsurfer.ports.size import Came, Moment, SizeChoice, SizeTerms

Floats = npt.NDArray[np.float64]
GIB = float(1 << 30)
MEMORY_ROOM = 1.01  # a type fits if it holds so much more than is needed; the guard stands behind it
SATURATED = 0.97  # of the cores: then the wish for more is hidden
FELL_SHARE, FELL_BYTES = 1.05, 0.5 * GIB  # memory that is so far below the minute's peak has just fallen
FIRST = 0.2  # of the regret: enough to leave the type that was asked for, for a cheaper one that holds the peak so far
DEARER, CHEAPER = 1.5, 2.0  # a pair's threshold times or by so much, after moves that did not pay, and that did
MOST, LEAST = 6.0, 0.4  # of a pair's threshold
HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Table:
    """The types as arrays."""

    price: Floats  # USD a second
    cores: Floats
    usable: Floats  # bytes
    round_trip: Floats  # USD, by pair
    start: int
    threads: float


@dataclass(frozen=True, slots=True)
class Episode:
    """The stay that a planned move began: from where, to where, and what it gained so far."""

    source: int
    here: int
    gain: float = 0.0


@dataclass(frozen=True, slots=True)
class Riding:
    """What is remembered of a run."""

    table: Table
    regret: Floats
    threshold: Floats
    here: int
    episode: Episode | None = None
    wanted: int | None = None
    peak_bytes: float = 0.0
    most_cores: float = 0.0


class Rental:
    """Ski rental with thresholds that learn."""

    def __init__(self, stretch: bool = False) -> None:
        """`stretch` False: no choice of fewer cores than the job uses; True: money alone counts, and the run takes longer."""
        self._stretch = stretch

    def begin(self, terms: SizeTerms) -> tuple[Riding, int]:
        """On the type that was asked for."""
        n = len(terms.kinds)
        return Riding(table_of(terms), np.zeros((n, n)), np.ones((n, n)), terms.start), terms.start

    def look(self, memory: Riding, moment: Moment) -> tuple[Riding, SizeChoice]:
        """Learn from the minute, then the move with the largest margin, if one is worth it."""
        riding = _arrived(memory, moment)
        table = riding.table
        cores = max(demand(table, moment, riding.most_cores), moment.hinted_cores)
        holds = table.usable >= MEMORY_ROOM * need_bytes(moment)
        if not self._stretch:
            holds &= table.cores >= min(cores, table.cores.max())
        cost = table.price * np.maximum(1.0, cores / table.cores) * moment.seconds
        riding = _learned(riding, moment, cost, holds)
        fits = table.usable >= MEMORY_ROOM * max(moment.memory_bytes, moment.hinted_bytes)
        to = _best(riding, moment, fits)
        if to is None:
            return replace(riding, wanted=None), SizeChoice()
        lost = riding.regret[moment.here, to]
        return replace(riding, wanted=to), SizeChoice(
            to, f"not being there has cost {lost:.6f} USD since it would have been better"
        )


def table_of(terms: SizeTerms) -> Table:
    """The types as arrays."""
    price = np.array([k.usd_per_hour for k in terms.kinds]) / HOUR
    cores = np.array([k.cores for k in terms.kinds])
    usable = np.array([k.usable_bytes for k in terms.kinds])
    trip = 2 * terms.move_seconds * (price[:, None] + price[None, :])
    return Table(price, cores, usable, trip, terms.start, terms.threads or float(cores.max()))


def need_bytes(moment: Moment) -> float:
    """What a type must hold: the minute's peak, but what is used now where memory has just fallen; what the job foretold."""
    now, most = moment.memory_bytes, moment.memory_max_bytes
    fell = most > FELL_SHARE * now + FELL_BYTES
    return max(now if fell else most, moment.hinted_bytes)


def demand(table: Table, moment: Moment, most_cores: float) -> float:
    """Cores that the job would use: those it used, unless it used all there are and could use more."""
    here = float(table.cores[moment.here])
    if moment.cores <= SATURATED * here or here >= table.threads:
        return moment.cores
    return min(most_cores, 2 * moment.cores) if most_cores > here else 2 * moment.cores


def _arrived(riding: Riding, moment: Moment) -> Riding:
    """Close the stay that ended, judge the move that began it, and open the next."""
    seen = replace(
        riding,
        here=moment.here,
        peak_bytes=max(riding.peak_bytes, moment.memory_max_bytes),
        most_cores=max(riding.most_cores, moment.cores),
    )
    if moment.came is Came.STAYED:
        return seen
    planned = moment.came is Came.PLANNED
    return replace(seen, threshold=_judged(riding), episode=Episode(riding.here, moment.here) if planned else None)


def _judged(riding: Riding) -> Floats:
    episode = riding.episode
    if episode is None:
        return riding.threshold
    pair, threshold = (episode.source, episode.here), riding.threshold.copy()
    if episode.gain < riding.table.round_trip[pair]:
        threshold[pair] = min(MOST, threshold[pair] * DEARER)
    else:
        threshold[pair] = max(LEAST, threshold[pair] / CHEAPER)
    return threshold


def _learned(riding: Riding, moment: Moment, cost: Floats, holds: npt.NDArray[np.bool_]) -> Riding:
    """A minute more of regret for each pair, and of the stay's gain."""
    regret = np.where(holds[None, :], np.maximum(0.0, riding.regret + cost[:, None] - cost[None, :]), 0.0)
    episode = riding.episode
    if episode is not None and holds[episode.source]:
        episode = replace(episode, gain=episode.gain + float(cost[episode.source] - cost[moment.here]))
    return replace(riding, regret=regret, episode=episode)


def _best(riding: Riding, moment: Moment, fits: npt.NDArray[np.bool_]) -> int | None:
    """The type whose regret is furthest above what a move needs."""
    table, here = riding.table, moment.here
    ease = np.ones(len(table.price))
    if here == table.start:
        ease[(table.usable >= riding.peak_bytes) & (table.price < table.price[here])] = FIRST
    if moment.free:
        ease[:] = 0.0
    margin = riding.regret[here] - riding.threshold[here] * table.round_trip[here] * ease
    margin[~fits] = -np.inf
    margin[here] = -np.inf
    to = int(margin.argmax())
    return to if margin[to] > 0 else None
