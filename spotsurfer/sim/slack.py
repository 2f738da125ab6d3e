"""How cost, and the gap to the optimum, change with the time to spare: the same back-test at shorter and longer deadlines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from spotsurfer.ports.purchase import Terms
from spotsurfer.sim.deadline import ticks_of
from spotsurfer.sim.match import UNITS, Step
from spotsurfer.sim.outcome import Comparison
from spotsurfer.sim.plots import Lines, Plot, Series

SHARES = (0.25, 0.5, 1.0, 1.5, 2.0)  # of the time to spare that was asked for
WINDOWS = 20  # played at each: those of the table are many more


def plots(
    play: Callable[[Terms, Sequence[int]], Comparison], windows: Callable[[int], Sequence[int]], terms: Terms, step: Step
) -> list[Plot]:
    """Mean cost by time to spare, and the gap where the optimum is among the policies; none where but one deadline fits.

    `windows`: rows at which a window of so many ticks begins; the same ones are played at each deadline.
    """
    asked = [t for t in _deadlines(terms) if windows(ticks_of(t))]
    if len(asked) < 2:
        return []
    rows = windows(ticks_of(asked[-1]))  # what has room for the longest has room for all
    rows = rows[:: math.ceil(len(rows) / WINDOWS)]
    found = []
    for i, t in enumerate(asked):
        step(i, len(asked))
        found.append(((t.deadline_seconds - t.work_seconds) / 3600, play(t, rows)))
    step(len(asked), len(asked))
    return curves(found)


def curves(found: Sequence[tuple[float, Comparison]]) -> list[Plot]:
    """`found`: hours to spare, growing, with the comparison at each."""
    unit, names = found[0][1].unit, [o.policy for o in found[0][1].outcomes]
    means = [(hours, {o.policy: float(o.cost.mean()) for o in c.outcomes}) for hours, c in found]
    label = "hours to spare beyond the work"
    cost = Lines("Cost by time to spare", label, UNITS.get(unit, unit), _series(names, means))
    reference = found[0][1].reference
    if reference not in names or len(names) == 1:
        return [cost]
    gaps = [(hours, {n: 100 * (mean[n] / mean[reference] - 1) for n in names}) for hours, mean in means]
    others = [n for n in names if n != reference]
    return [cost, Lines("Gap to the optimum by time to spare", label, "per cent", _series(others, gaps))]


def _series(names: Sequence[str], values: Sequence[tuple[float, dict[str, float]]]) -> list[Series]:
    return [Series(n, [(hours, of[n]) for hours, of in values]) for n in names]


def _deadlines(terms: Terms) -> list[Terms]:
    """Ever longer; each leaves time for a launch and a slot of time on top of the work."""
    spare = terms.deadline_seconds - terms.work_seconds
    least = terms.restart_seconds + terms.tick_seconds
    seconds = sorted({max(share * spare, min(least, spare)) for share in SHARES})
    return [replace(terms, deadline_seconds=terms.work_seconds + s) for s in seconds]
