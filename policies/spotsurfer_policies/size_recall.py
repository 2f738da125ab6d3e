"""With an earlier run of the same step: where in it are we, and what is the cheapest way on from there?

A filter over position in the earlier run, pace and size finds out, minute by minute, where this run is; a dynamic program over
the earlier run says what being on each type costs from there, moves included. Where the earlier run does not explain what is
seen, `surf` of a first run decides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from spotsurfer.ports.size import Earlier, Moment, SizeChoice, SizeTerms
from spotsurfer_policies.size_rental import Floats, Rental, Riding, Table, table_of

BINS = 600
PACES = np.geomspace(0.82, 1.22, 9)  # of this run, of the earlier one's
SCALES = np.geomspace(0.86, 1.16, 25)  # of this run's memory
PACE_SPREAD, SCALE_SPREAD = 0.1, 0.06  # of the logarithms, at first
MEMORY_ERROR, CORE_ERROR = 0.04, 1.5  # of the logarithm; in cores
FORGET = 0.9  # of how well the earlier run explained the minutes before
FORGET_RUN = 0.98  # of the evidence for one earlier run or another
TRUST = 0.5  # below so much explained, the first-run policy decides
ROOM = 1.01  # a type must hold so many times what is used now
LATEST = 3  # earlier runs that are looked at
FORCED = 1.1  # a forced move is reckoned so much dearer
TINY = 1e-30


@dataclass(frozen=True, slots=True)
class Chart:
    """An earlier run in bins of equal length, and what each type costs from each of them on, by scale: `[scale, bin, type]`."""

    bin_seconds: float
    memory: Floats
    cores: Floats
    cost: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Belief:
    """`weight[pace, scale, bin]` sums to 1. `explained`: how well the last minutes were, 0 to 1."""

    weight: npt.NDArray[np.float32]
    explained: float = 1.0


def chart(earlier: Earlier, terms: SizeTerms, table: Table, stretch: bool = True) -> Chart:
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
        stay[~np.isfinite(stay)] = stretched.max() * count  # nothing holds it: all are as bad
        cost[:, i] = stay
        ahead = (move + stay[:, None, :]).min(axis=2)
    return Chart(seconds, memory, cores, cost)


def believed(made: Chart) -> Belief:
    """At the beginning of the run."""
    weight = np.zeros((len(PACES), len(SCALES), len(made.memory)), dtype=np.float32)
    pace = np.exp(-((np.log(PACES) / PACE_SPREAD) ** 2) / 2)
    scale = np.exp(-((np.log(SCALES) / SCALE_SPREAD) ** 2) / 2)
    weight[:, :, 0] = pace[:, None] * scale
    return Belief(weight / weight.sum())


def went_on(made: Chart, belief: Belief, moment: Moment, table: Table) -> tuple[Belief, float]:
    """Move on by the seconds since the last look, then weigh by what was seen; and the logarithm of how likely that was."""
    cores = float(table.cores[moment.here])
    speed = np.minimum(1.0, cores / np.maximum(made.cores, TINY))
    weight = np.zeros_like(belief.weight)
    for i, pace in enumerate(PACES):
        _shift(belief.weight[i], weight[i], moment.seconds * pace * speed / made.bin_seconds)
    memory = np.log(np.maximum(made.memory, 1.0))[None, :] + np.log(SCALES)[:, None]
    seen = np.log(max(moment.memory_bytes, 1.0))
    off = np.abs(memory - seen)
    core_off = np.abs(np.minimum(made.cores, cores) - moment.cores)
    by_memory = np.exp(-off / MEMORY_ERROR)
    explained = float((weight.sum(axis=0) * (off < 4 * MEMORY_ERROR)).sum())
    weight = weight * (by_memory * np.exp(-core_off / CORE_ERROR) + 1e-4).astype(np.float32)
    total = float(weight.sum())
    explained = FORGET * belief.explained + (1 - FORGET) * explained
    return Belief(weight / total if total > TINY else belief.weight, explained), float(np.log(max(total, TINY)))


def outlook(made: Chart, belief: Belief) -> Floats:
    """Expected USD from here to the end, by type, if it is the one that the job is on now."""
    found: Floats = np.einsum("sb,sbk->k", belief.weight.sum(axis=0), made.cost).astype(np.float64)
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
    """Move mass on by so many bins, which differ from bin to bin; what passes the end stays in the last."""
    count = source.shape[1]
    whole = np.floor(by).astype(np.int64)
    share = (by - whole).astype(np.float32)
    for step in np.unique(whole):
        for to, part in ((int(step), 1 - share), (int(step) + 1, share)):
            moved = source * np.where(whole == step, part, np.float32(0))
            past = min(to, count)
            target[:, past:] += moved[:, : count - past]
            target[:, -1] += moved[:, count - past :].sum(axis=1)


@dataclass(frozen=True, slots=True)
class Recalling:
    """What is remembered of a run: a chart and a belief for each earlier run, and what the first-run policy remembers.

    `evidence`: logarithms of how well each earlier run foretold what was seen, the past forgotten slowly.
    """

    first: Riding
    table: Table
    move_seconds: float
    charts: tuple[Chart, ...]
    beliefs: tuple[Belief, ...]
    evidence: Floats

    @property
    def shares(self) -> Floats:
        """How much each earlier run is believed, together 1."""
        found: Floats = np.exp(self.evidence - self.evidence.max())
        return found / found.sum()

    @property
    def explained(self) -> float:
        """How well the last minutes were, 0 to 1."""
        return float(self.shares @ np.array([b.explained for b in self.beliefs]))

    def outlook(self) -> Floats:
        """Expected USD from here to the end, by type."""
        parts = [outlook(c, b) for c, b in zip(self.charts, self.beliefs, strict=True)]
        found: Floats = self.shares @ np.array(parts)
        return found


class Recall:
    """Plans by earlier runs while they explain what is seen."""

    def __init__(self, first: Rental, stretch: bool = True) -> None:
        """`first` decides where they don't."""
        self._first, self._stretch = first, stretch

    def begin(self, terms: SizeTerms) -> tuple[Recalling, int]:
        """On the type that the plan begins on."""
        table = table_of(terms)
        charts = tuple(chart(e, terms, table, self._stretch) for e in terms.earlier[-LATEST:])
        beliefs = tuple(believed(c) for c in charts)
        start = int(np.mean([outlook(c, b) for c, b in zip(charts, beliefs, strict=True)], axis=0).argmin())
        memory, _ = self._first.begin(replace(terms, start=start))
        return Recalling(memory, table, terms.move_seconds, charts, beliefs, np.zeros(len(charts))), start

    def look(self, memory: Recalling, moment: Moment) -> tuple[Recalling, SizeChoice]:
        """The plan's choice, or that of the first-run policy where earlier runs explain too little."""
        first, other = self._first.look(memory.first, moment)
        went = [went_on(c, b, moment, memory.table) for c, b in zip(memory.charts, memory.beliefs, strict=True)]
        evidence = FORGET_RUN * memory.evidence + np.array([log for _, log in went])
        memory = replace(memory, first=first, beliefs=tuple(b for b, _ in went), evidence=evidence)
        return memory, other if memory.explained < TRUST else _planned(memory, moment)


def _planned(memory: Recalling, moment: Moment) -> SizeChoice:
    """The type with the least expected cost, the move there included."""
    table, here = memory.table, moment.here
    move = 0.0 * table.price if moment.free else memory.move_seconds * (table.price + table.price[here])
    move[here] = 0.0
    total = memory.outlook() + move
    total[table.usable < ROOM * max(moment.memory_bytes, moment.hinted_bytes)] = np.inf
    to = int(total.argmin())
    if to == here or not total[to] < total[here]:
        return SizeChoice()
    return SizeChoice(to, f"by the earlier run it saves {total[here] - total[to]:.3f} USD")
