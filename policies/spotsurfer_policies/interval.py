"""`surf`: save when it pays, by the hazard of the machine's age, the cost of a save and of a restart, and notices.

The dynamic program of `core.saves` is solved with the hazard as it is known now. A loss with a notice that leaves time
for a final save costs no work, so the more of them there were, the fewer saves are made. With a constant hazard and a
long job this is Young's and Daly's interval; with one that falls with age, young machines are saved often and old ones
seldom.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

from spotsurfer.core.hazard import learned, prior, survival
from spotsurfer.core.saves import Costs, Plan, plan
from spotsurfer.ports.interval import SaveView

RECALL_PRIOR = (9.0, 1.0)  # as if nine notices had come in time and one not
FINAL_SAFETY = 1.25  # a final save may take so much longer than forecast
RATE_STEP, COST_STEP = 0.25, 0.1  # plans are shared by views that differ by less (of logarithms)
HORIZON_SECONDS = 24 * 3600.0  # of work, where nobody knows how much is left
FINE = 60.0  # a plan covers at most so many of Young's intervals: beyond, the end is out of sight
LEAST_COVER, COVERS = 600.0, 6.0  # lengths of work that plans are made for: ten minutes, an hour, six, …
LEAST_SECONDS = 30.0  # saves never follow each other faster


class Surf:
    """The plan that costs the least time in expectation."""

    def save_after(self, view: SaveView) -> float | None:
        """Seconds of work until the next live save; None = none before the job's end."""
        work = view.left_seconds if view.left_seconds is not None else HORIZON_SECONDS
        rates = tuple(_rounded(h, RATE_STEP) for h in learned(view.lives, prior(view.band)))
        save = _rounded(max(view.save_seconds, 0.1), COST_STEP)
        sight = FINE * math.sqrt(2 * save / max(rates))
        covered = min(LEAST_COVER * COVERS ** math.ceil(math.log(max(work / LEAST_COVER, 1.0), COVERS)), sight)
        table = _plan(rates, view.cap_seconds, save, _rounded(max(view.restart_seconds, 1.0), COST_STEP), recall(view), covered)
        after = table.after(min(work, covered), view.age_seconds)
        if view.left_seconds is not None and after >= view.left_seconds - 1.0:
            return None
        return max(after, LEAST_SECONDS)


def recall(view: SaveView) -> float:
    """The share of losses whose notice is believed to be long enough for a final save: 0, or one in twenty steps."""
    if view.final_seconds * FINAL_SAFETY > view.notice_seconds:
        return 0.0
    good, bad = RECALL_PRIOR
    share = (view.noticed + good) / (view.noticed + view.unnoticed + good + bad)
    return 1 - _rounded(max(1 - share, 1e-3), RATE_STEP)


def _rounded(value: float, step: float) -> float:
    return math.exp(round(math.log(value) / step) * step)


@lru_cache(maxsize=64)
def _plan(rates: tuple[float, ...], cap: float | None, save: float, restart: float, share: float, work: float) -> Plan:
    return plan(survival(rates, math.inf if cap is None else cap), Costs(save, restart, share), work)


def make(settings: Mapping[str, object]) -> Surf:
    """The hazard by age, learned; what a save, a loss and a restart cost; notices."""
    if settings:
        raise ValueError(f"interval.surf: it has no parameters, not {', '.join(map(str, settings))}")
    return Surf()
