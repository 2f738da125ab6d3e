"""`surf` for sizes: ski rental that learns on a step's first run, plans by earlier runs of the same named step afterwards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from spotsurfer.ports.policies import Came, Earlier, Parameter, SizeChoice, SizeMoment, SizeTerms, parameters, parameters_of
from spotsurfer_policies.parameter_values import values
from spotsurfer_policies.size_time import Demand, Flags, Floats, Room, Spent, Table, demand, room, table_of, went_on

# ---- First run: wait with a move until not having moved has cost as much as a move there and back.
# Ski rental on *regret*: for each pair of types, the money lost by not being on the other one since it last stopped holding the
# job's memory or stopped being better, with memory and cores both counted. Each pair learns from the success of its earlier
# moves how much regret a move needs.

GIB = float(1 << 30)
MEMORY_ROOM = 1.01  # a type fits if it holds this multiple of the need; the guard covers the rest
FELL_SHARE, FELL_BYTES = 1.05, 0.5 * GIB  # memory this far below the minute's peak has just fallen
SLOWER = 2.0  # times the regret, to go to fewer cores than the job uses, or may use
FIRST = 0.2  # of the regret: enough to leave the requested type for a cheaper one that holds the peak so far
DEARER, CHEAPER = 1.5, 2.0  # factor and divisor of a pair's threshold, after a move that did not pay, and one that did
MOST, LEAST = 6.0, 0.4  # of a pair's threshold


@dataclass(frozen=True, slots=True)
class Episode:
    """The stay after a planned move: from which type, to which, and its gain so far."""

    source: int
    here: int
    gain: float = 0.0


@dataclass(frozen=True, slots=True)
class Riding:
    """Memory of a run."""

    table: Table
    regret: Floats
    threshold: Floats
    here: int
    spent: Spent
    episode: Episode | None = None
    wanted: int | None = None
    peak_bytes: float = 0.0
    most_cores: float = 0.0


class Rental:
    """Ski rental with thresholds that learn, within a bound on time."""

    def __init__(self, stretch: float) -> None:
        """`stretch`: see `Surf`."""
        self._stretch = stretch

    def begin(self, table: Table) -> Riding:
        """The state of a run that begins on `table.start`."""
        n = len(table.price)
        return Riding(table, np.zeros((n, n)), np.ones((n, n)), table.start, Spent(np.zeros(n)))

    def look(self, memory: Riding, moment: SizeMoment) -> tuple[Riding, SizeChoice, Room]:
        """Learn from the minute, then make the move with the largest margin, if one is worth it. Also: where there is time."""
        riding = _arrived(memory, moment)
        table = riding.table
        wants = demand(table, moment, riding.most_cores, riding.spent)
        wants = Demand(max(wants.cores, moment.hinted_cores), max(wants.most, moment.hinted_cores))
        riding = replace(riding, spent=went_on(riding.spent, table, moment, wants))
        where = room(self._stretch, riding.spent, table, moment, wants)
        rate = table.price * np.maximum(1.0, wants.cores / table.cores)
        holds = table.usable >= MEMORY_ROOM * need_bytes(moment)
        riding = _learned(riding, moment, rate * moment.seconds, holds & where.may)
        fits = table.usable >= MEMORY_ROOM * max(moment.memory_bytes, moment.hinted_bytes)
        if not where.may[moment.here] and (fits & where.full).any():
            to = int(np.where(fits & where.full, rate, np.inf).argmin())
            return replace(riding, wanted=to), SizeChoice(to, "no more time may be lost on few processors"), where
        best = _best(riding, moment, fits & where.may & (where.moves or moment.free), where.full)
        if best is None:
            return replace(riding, wanted=None), SizeChoice(), where
        lost = riding.regret[moment.here, best]
        why = f"not being there has cost {lost:.6f} USD since it would have been better"
        return replace(riding, wanted=best), SizeChoice(best, why), where


def need_bytes(moment: SizeMoment) -> float:
    """Memory that a type must hold: the minute's peak, or the present use if it has just fallen; and the job's forecast."""
    now, most = moment.memory_bytes, moment.memory_max_bytes
    fell = most > FELL_SHARE * now + FELL_BYTES
    return max(now if fell else most, moment.hinted_bytes)


def _arrived(riding: Riding, moment: SizeMoment) -> Riding:
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


def _learned(riding: Riding, moment: SizeMoment, cost: Floats, holds: Flags) -> Riding:
    """Adds a minute of regret to each pair, and of gain to the stay."""
    regret = np.where(holds[None, :], np.maximum(0.0, riding.regret + cost[:, None] - cost[None, :]), 0.0)
    episode = riding.episode
    if episode is not None and holds[episode.source]:
        episode = replace(episode, gain=episode.gain + float(cost[episode.source] - cost[moment.here]))
    return replace(riding, regret=regret, episode=episode)


def _best(riding: Riding, moment: SizeMoment, fits: Flags, full: Flags) -> int | None:
    """The type with the most regret above the threshold for a move."""
    table, here = riding.table, moment.here
    ease = np.where(full, 1.0, SLOWER)
    if here == table.start:
        ease[(table.usable >= riding.peak_bytes) & (table.price < table.price[here])] = FIRST
    if moment.free:
        ease[:] = 0.0
    margin = riding.regret[here] - riding.threshold[here] * table.round_trip[here] * ease
    margin[~fits] = -np.inf
    margin[here] = -np.inf
    to = int(margin.argmax())
    return to if margin[to] > 0 else None


# ---- Charts: the position in an earlier run of the same step, and the cost of the rest from there.
# A filter over position in the earlier run, pace and size finds the position of this run, minute by minute. A dynamic program
# over the earlier run gives the cost of each type from there, moves included.

BINS = 600
PACES = np.geomspace(0.82, 1.22, 9)  # of this run, relative to the earlier one
SCALES = np.geomspace(0.86, 1.16, 25)  # of this run's memory
PACE_SPREAD, SCALE_SPREAD = 0.1, 0.06  # of the logarithms, at first
MEMORY_ERROR, CORE_ERROR = 0.04, 1.5  # of the logarithm; in cores
FORGET = 0.9  # of how well the earlier run explained the minutes before
FORCED = 1.1  # factor on the cost of a forced move
UNLIKELY = 1e-4  # chance of impossible observations, so that mistakes can be corrected
NEAR = 4  # errors: an observation this close counts as explained
FAINT = 1e-9  # smaller beliefs are dropped
TINY = 1e-30


@dataclass(frozen=True, slots=True)
class Chart:
    """An earlier run in bins of equal length, and the cost of each type from each bin on, by scale: `[scale, bin, type]`."""

    bin_seconds: float
    memory: Floats
    cores: Floats
    cost: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Belief:
    """`weight[pace, scale, bin]` sums to 1. `explained`: how well it explains the last minutes, 0 to 1."""

    weight: npt.NDArray[np.float32]
    explained: float = 1.0


def chart(earlier: Earlier, terms: SizeTerms, table: Table, stretch: bool = False) -> Chart:
    """Bins and the dynamic program, backwards."""
    seconds, memory, cores = _bins(earlier)
    count, kinds = len(memory), len(terms.kinds)
    stretched = np.maximum(1.0, cores[:, None] / table.cores) * seconds * table.price
    move = terms.move_seconds * (table.price[:, None] + table.price[None, :])
    np.fill_diagonal(move, 0.0)
    cost = np.zeros((len(SCALES), count, kinds), dtype=np.float32)
    ahead = np.zeros((len(SCALES), kinds))
    for i in range(count - 1, -1, -1):
        fits = SCALES[:, None] * memory[i] <= table.usable
        if not stretch:
            fits = fits & (table.cores >= min(cores[i], table.cores.max()))
        stay = np.where(fits, stretched[i] + ahead, np.inf)
        fled = (FORCED * move + stay[:, None, :]).min(axis=2)
        stay = np.where(fits, stay, fled)
        stay[~np.isfinite(stay)] = stretched.max() * count  # nothing holds it: all are equally bad
        cost[:, i] = stay
        ahead = (move + stay[:, None, :]).min(axis=2)
    return Chart(seconds, memory, cores, cost)


def believed(made: Chart) -> Belief:
    """The belief at the beginning of the run."""
    weight = np.zeros((len(PACES), len(SCALES), len(made.memory)), dtype=np.float32)
    pace = np.exp(-((np.log(PACES) / PACE_SPREAD) ** 2) / 2)
    scale = np.exp(-((np.log(SCALES) / SCALE_SPREAD) ** 2) / 2)
    weight[:, :, 0] = pace[:, None] * scale
    return Belief(weight / weight.sum())


def followed(made: Chart, belief: Belief, moment: SizeMoment, table: Table) -> tuple[Belief, float]:
    """Advance by the seconds since the last look, then weigh by the observation; also returns its log-likelihood."""
    cores = float(table.cores[moment.here])
    by = moment.seconds * np.minimum(1.0, cores / np.maximum(made.cores, TINY)) / made.bin_seconds
    first, last = _held(belief)
    part = slice(first, min(last + int(by.max() * PACES[-1]) + 3, len(by)))
    weight = np.zeros_like(belief.weight)
    for i, pace in enumerate(PACES):
        _shift(belief.weight[i, :, part], weight[i, :, part], pace * by[part])
    likely, close = _likely(made, part, moment, cores)
    explained = FORGET * belief.explained + (1 - FORGET) * float((weight[:, :, part].sum(axis=0) * close).sum())
    weight[:, :, part] *= likely
    total = float(weight.sum())
    if total <= TINY:
        return Belief(belief.weight, explained), float(np.log(TINY))
    weight /= total
    weight[weight < FAINT] = 0
    return Belief(weight, explained), float(np.log(total))


def _held(belief: Belief) -> tuple[int, int]:
    """First and last bin with any belief."""
    bins = np.flatnonzero(belief.weight.any(axis=(0, 1)))
    return int(bins[0]), int(bins[-1])


def _likely(
    made: Chart, part: slice, moment: SizeMoment, cores: float
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """Likelihood of the observation, by scale and bin; and the bins near it."""
    memory = np.log(np.maximum(made.memory[part], 1.0))[None, :] + np.log(SCALES)[:, None]
    off = np.abs(memory - np.log(max(moment.memory_bytes, 1.0)))
    core_off = np.abs(np.minimum(made.cores[part], cores) - moment.cores)
    likely = np.exp(-off / MEMORY_ERROR) * np.exp(-core_off / CORE_ERROR) + UNLIKELY
    return likely.astype(np.float32), off < NEAR * MEMORY_ERROR


def outlook(made: Chart, belief: Belief) -> Floats:
    """Expected USD from here to the end, for each type as the present one."""
    first, last = _held(belief)
    weight, cost = belief.weight[:, :, first : last + 1].sum(axis=0), made.cost[:, first : last + 1]
    found: Floats = np.einsum("sb,sbk->k", weight, cost).astype(np.float64)
    return found


def _bins(earlier: Earlier) -> tuple[float, Floats, Floats]:
    """Seconds of a bin; the peak of memory and the mean of cores in each."""
    lasts = np.array(earlier.seconds)
    ends = np.cumsum(lasts)
    count = min(BINS, len(lasts))
    edges = np.linspace(0, ends[-1], count + 1)
    used = np.concatenate([[0.0], np.cumsum(lasts * np.array(earlier.cores))])
    cores = np.diff(np.interp(edges, np.concatenate([[0.0], ends]), used)) / np.diff(edges)
    first = np.searchsorted(ends, edges[:-1] + 1e-9)
    last = np.minimum(np.searchsorted(ends, edges[1:] - 1e-9), len(lasts) - 1)
    memory = np.array(earlier.memory_bytes)
    peaks = np.array([memory[a : b + 1].max() for a, b in zip(first, last, strict=True)])
    return float(edges[1]), peaks, cores


def _shift(source: npt.NDArray[np.float32], target: npt.NDArray[np.float32], by: Floats) -> None:
    """Move mass on by so many bins, which differ from bin to bin; mass beyond the end stays in the last bin."""
    count = source.shape[1]
    whole = np.floor(by).astype(np.int64)
    share = (by - whole).astype(np.float32)
    for step in np.unique(whole):
        for to, part in ((int(step), 1 - share), (int(step) + 1, share)):
            moved = source * np.where(whole == step, part, np.float32(0))
            past = min(to, count)
            target[:, past:] += moved[:, : count - past]
            target[:, -1] += moved[:, count - past :].sum(axis=1)


# ---- Later runs: the cheapest plan by the charts of earlier runs of the same step.
# If the charts do not explain the observations, the policy of a first run decides.

FORGET_RUN = 0.98  # of the evidence for one earlier run or another
TRUST = 0.5  # with less explained, the first-run policy decides
ROOM = 1.01  # a type must hold this multiple of the present use
LATEST = 3  # number of earlier runs used


@dataclass(frozen=True, slots=True)
class Recalling:
    """Memory of a run: a chart and a belief for each earlier run, and the memory of the first-run policy.

    `evidence`: log-likelihoods of the observations under each earlier run, with the past forgotten slowly.
    """

    first: Riding
    table: Table
    move_seconds: float
    charts: tuple[Chart, ...]
    beliefs: tuple[Belief, ...]
    evidence: Floats

    @property
    def shares(self) -> Floats:
        """The belief in each earlier run; sums to 1."""
        likely = np.exp(self.evidence - self.evidence.max())
        found: Floats = likely / likely.sum()
        return found

    @property
    def explained(self) -> float:
        """How well the charts explain the last minutes, 0 to 1."""
        return float(self.shares @ np.array([b.explained for b in self.beliefs]))

    def outlook(self) -> Floats:
        """Expected USD from here to the end, by type."""
        parts = [outlook(c, b) for c, b in zip(self.charts, self.beliefs, strict=True)]
        found: Floats = self.shares @ np.array(parts)
        return found


@lru_cache(maxsize=32)  # many jobs of one kind have the same terms
def plan(terms: SizeTerms, stretch: bool) -> tuple[tuple[Chart, ...], tuple[Belief, ...], int]:
    """The charts of the latest earlier runs, what is believed at the beginning, and the type to begin on."""
    table = table_of(terms)
    charts = tuple(chart(e, terms, table, stretch) for e in terms.earlier[-LATEST:])
    beliefs = tuple(believed(c) for c in charts)
    start = int(np.mean([outlook(c, b) for c, b in zip(charts, beliefs, strict=True)], axis=0).argmin())
    return charts, beliefs, start


def _planned(memory: Recalling, moment: SizeMoment, where: Room) -> SizeChoice:
    """The type with the least expected cost, the move there included, among those for which there is time."""
    table, here = memory.table, moment.here
    move = 0.0 * table.price if moment.free else memory.move_seconds * (table.price + table.price[here])
    move[here] = 0.0
    total = memory.outlook() + move
    total[table.usable < ROOM * max(moment.memory_bytes, moment.hinted_bytes)] = np.inf
    total[table.cores < min(moment.hinted_cores, table.cores.max())] = np.inf
    total[~(where.may if where.may[here] else where.full)] = np.inf
    if not (where.moves or moment.free) and where.may[here]:
        return SizeChoice()
    to = int(total.argmin())
    if to == here or not total[to] < total[here]:
        return SizeChoice()
    return SizeChoice(to, f"by the earlier run it saves {total[here] - total[to]:.6f} USD")


# ---- Policy

STRETCH = 1.15


class Surf:
    """Selects one of the two policies by whether the step ran before."""

    def __init__(self, stretch: float = STRETCH) -> None:
        """`stretch`: the time of the whole run, with its moves, relative to that on the machine that was asked for.

        What counts as lost: seconds in which the job has fewer cores than it uses, as far as that slows it, and
        `terms.move_seconds` for each move that was wished or forced by the guard. A reclaim costs nothing here: it would have
        come anyway. At every look the lost seconds are at most `stretch - 1` of the time that the work so far takes on the
        machine that was asked for, or of an hour for a shorter run, and two moves. What may be missed:

        - moves of the guard, which are never refused;
        - a look, and what a move waits for: a machine's boot, or the limit on moves an hour;
        - a job that uses all cores of a small type hides how many it wants. It is taken to want what it used when it last had
          cores to spare, and more with time. At worst it loses twice the seconds before it is moved up, and four times as many
          each time that it turned out to want no more, up to 32 times. What it uses there is
          taken to be what it wanted before; a job that always wants more on small types than on large ones could lose more.
        """
        self._rental, self._stretch = Rental(stretch), stretch

    def begin(self, terms: SizeTerms) -> tuple[Riding | Recalling, int]:
        """The requested type, or the type that the plan begins on."""
        table = table_of(terms)
        if not terms.earlier:
            return self._rental.begin(table), terms.start
        charts, beliefs, start = plan(terms, self._stretch > 1)
        first = self._rental.begin(replace(table, start=start))
        return Recalling(first, table, terms.move_seconds, charts, beliefs, np.zeros(len(charts))), start

    def look(self, memory: Riding | Recalling, moment: SizeMoment) -> tuple[Riding | Recalling, SizeChoice]:
        """The plan's choice, or that of the first-run policy if there is no plan, or earlier runs explain too little."""
        if isinstance(memory, Riding):
            return self._rental.look(memory, moment)[:2]
        first, other, where = self._rental.look(memory.first, moment)
        went = [followed(c, b, moment, memory.table) for c, b in zip(memory.charts, memory.beliefs, strict=True)]
        evidence = FORGET_RUN * memory.evidence + np.array([log for _, log in went])
        memory = replace(memory, first=first, beliefs=tuple(b for b, _ in went), evidence=evidence)
        return memory, other if memory.explained < TRUST else _planned(memory, moment, where)


@parameters(Parameter("stretch", STRETCH, "the run may take so many times as long as on the size that was asked for"))
def make(settings: Mapping[str, object]) -> Surf:
    """Move when not having moved has cost as much as a move there and back; plan by earlier runs of the same step."""
    given = settings.get("stretch")
    found = values("size.surf", settings if not isinstance(given, bool) else {**settings, "stretch": 1.0}, parameters_of(make))
    stretch = math.inf if given is True else found["stretch"]  # true and false: as jobs of earlier versions have it
    if stretch < 1:
        raise ValueError("size.surf: stretch must be at least 1: the whole run's time relative to that on the size asked for")
    return Surf(stretch)
