"""Where in an earlier run of the same step are we, and what does the way on cost from there?

A filter over position in the earlier run, pace and size finds out, minute by minute, where this run is; a dynamic program over
the earlier run says what being on each type costs from there, moves included.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spotsurfer.ports.size import Earlier, Moment, SizeTerms
from spotsurfer_policies.size_rental import Floats, Table

BINS = 600
PACES = np.geomspace(0.82, 1.22, 9)  # of this run, of the earlier one's
SCALES = np.geomspace(0.86, 1.16, 25)  # of this run's memory
PACE_SPREAD, SCALE_SPREAD = 0.1, 0.06  # of the logarithms, at first
MEMORY_ERROR, CORE_ERROR = 0.04, 1.5  # of the logarithm; in cores
FORGET = 0.9  # of how well the earlier run explained the minutes before
FORCED = 1.1  # a forced move is reckoned so much dearer
UNLIKELY = 1e-4  # of what can't be, so that a mistake can be mended
NEAR = 4  # errors: so far off is explained
FAINT = 1e-9  # belief that is dropped
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
    """First bin that is believed in at all, and last."""
    bins = np.flatnonzero(belief.weight.any(axis=(0, 1)))
    return int(bins[0]), int(bins[-1])


def _likely(made: Chart, part: slice, moment: Moment, cores: float) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """How likely what was seen is, by scale and bin; and where it is not far off."""
    memory = np.log(np.maximum(made.memory[part], 1.0))[None, :] + np.log(SCALES)[:, None]
    off = np.abs(memory - np.log(max(moment.memory_bytes, 1.0)))
    core_off = np.abs(np.minimum(made.cores[part], cores) - moment.cores)
    likely = np.exp(-off / MEMORY_ERROR) * np.exp(-core_off / CORE_ERROR) + UNLIKELY
    return likely.astype(np.float32), off < NEAR * MEMORY_ERROR


def outlook(made: Chart, belief: Belief) -> Floats:
    """Expected USD from here to the end, by type, if it is the one that the job is on now."""
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
