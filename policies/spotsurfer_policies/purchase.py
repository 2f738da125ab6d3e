"""Purchase policies that keep no memory: the baselines that every better one is measured by.

Each is a rule for many runs at once (numpy arrays, one value a run); a single job is many of one. Rules and names are those of
Wu et al., "Can't Be Late", NSDI 2024; that deadlines are kept is the caller's business (`core.deadline`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from spotsurfer.ports.parameters import Parameter, parameters
from spotsurfer.ports.purchase import Buy, Choice, Modes, Moment, Pilot, Terms, View

Rule = Callable[[Moment, Terms], Modes]
SLICES = 8
WAIT, SPOT, ON_DEMAND = (np.int8(b) for b in Buy)


class Ruled:
    """A policy that is one rule of the present moment."""

    def __init__(self, rule: Rule, why: str, keeps_deadlines: bool = True) -> None:
        """`keeps_deadlines` False: it is told how it does without the guard, as its origin has none."""
        self._rule, self._why, self.keeps_deadlines = rule, why, keeps_deadlines

    def choose(self, view: View) -> Choice:
        """What to hold during the next tick."""
        return Choice(Buy(int(self._rule(moment_of(view), view.terms)[0])), self._why)

    def pilot(self, terms: Terms, runs: int, past: tuple[bool | None, ...] = ()) -> Pilot:
        """The rule, on many runs."""
        del runs, past
        return lambda moment: self._rule(moment, terms)


def moment_of(view: View) -> Moment:
    """One job as many of one."""
    last = view.spot_seen[-1] if view.spot_seen else None
    return Moment(
        view.elapsed_seconds,
        np.array([view.done_seconds]),
        np.array([view.held], dtype=np.int8),
        np.array([view.owed_seconds]),
        np.array([-1 if last is None else int(last)], dtype=np.int8),
    )


def greedy(moment: Moment, terms: Terms) -> Modes:
    """Spot whenever it is there, else wait; on-demand is not left again once the time is up."""
    left, work = terms.deadline_seconds - moment.elapsed_seconds, terms.work_seconds - moment.done_seconds
    last_call = (moment.held == ON_DEMAND) & (left <= work + 2 * terms.restart_seconds)
    return np.where(last_call, ON_DEMAND, np.where(moment.spot_seen != 0, SPOT, WAIT))


def uniform_progress(moment: Moment, terms: Terms) -> Modes:
    """Spot when there is some; without, on-demand when behind an even pace, which is left only when ahead of it."""
    pace = terms.work_seconds / terms.deadline_seconds
    up, t = moment.spot_seen != 0, moment.elapsed_seconds
    ahead = moment.done_seconds > (t + 2 * terms.restart_seconds) * pace
    on_demand = np.where(up & ahead, SPOT, ON_DEMAND)
    else_ = np.where(up, SPOT, np.where(moment.done_seconds < t * pace, ON_DEMAND, WAIT))
    return np.where(moment.held == ON_DEMAND, on_demand, else_)


def sliced(slices: int) -> Rule:
    """Greedy with a quota and a safety net in each slice of the time; what was done beyond a quota counts for the next."""

    def rule(moment: Moment, terms: Terms) -> Modes:
        length = terms.deadline_seconds / slices
        number = min(int(moment.elapsed_seconds / length + 1e-9) + 1, slices)
        left = number * length - moment.elapsed_seconds
        work = np.maximum(number * terms.work_seconds / slices - moment.done_seconds, 0.0)
        up, tick, d = moment.spot_seen != 0, terms.tick_seconds, terms.restart_seconds
        owed = np.where(moment.held == SPOT, moment.owed_seconds, d)
        gained = np.where(up, np.maximum(0.0, tick - owed), 0.0)
        late = (work > 0) & (left - tick < work - gained + d)
        stay = (moment.held == ON_DEMAND) & (work > 0) & (left <= work + 2 * d)
        return np.where(late | stay, ON_DEMAND, np.where(up, SPOT, WAIT))

    return rule


def spot_only(moment: Moment, terms: Terms) -> Modes:
    """SkyPilot's managed jobs by default: recover on spot, try again until there is some; deadlines are unknown to it."""
    del terms
    return np.where(moment.spot_seen != 0, SPOT, WAIT)


def on_demand(moment: Moment, terms: Terms) -> Modes:
    """Nothing but on-demand."""
    del terms
    return np.full_like(moment.held, ON_DEMAND)


def make_greedy(settings: Mapping[str, object]) -> Ruled:
    """Spot whenever there is some, and on-demand once the time is up."""
    return _plain(settings, "greedy", greedy, "spot while the time allows")


def make_uniform_progress(settings: Mapping[str, object]) -> Ruled:
    """An even pace: on-demand only when behind it."""
    return _plain(settings, "uniform-progress", uniform_progress, "an even pace")


def make_on_demand(settings: Mapping[str, object]) -> Ruled:
    """On-demand from begin to end."""
    return _plain(settings, "on-demand", on_demand, "on-demand only")


def make_skypilot(settings: Mapping[str, object]) -> Ruled:
    """As SkyPilot recovers by default: spot only, and no deadline is known."""
    _plain(settings, "skypilot", spot_only, "")
    return Ruled(spot_only, "spot only", keeps_deadlines=False)


@parameters(Parameter("slices", SLICES, "so many parts the time is cut into"))
def make_sliced(settings: Mapping[str, object]) -> Ruled:
    """Greedy in each slice of the time, with a quota each."""
    slices = settings.get("slices", SLICES)
    if isinstance(slices, bool) or not isinstance(slices, int) or not 1 <= slices <= 1000:
        raise ValueError("purchase.sliced: slices must be a whole number from 1 to 1000")
    return Ruled(sliced(slices), f"greedy in each of {slices} slices")


def _plain(settings: Mapping[str, object], name: str, rule: Rule, why: str) -> Ruled:
    if settings:
        raise ValueError(f"purchase.{name}: it has no parameters, not {', '.join(map(str, settings))}")
    return Ruled(rule, why)
