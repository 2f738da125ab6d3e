"""Purchase policies: what to buy now, so that a job is done by its deadline at the least expected cost.

A policy says what is worth it. That the deadline is kept is not its business: `core.deadline.kept` overrules whatever it says.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Modes = npt.NDArray[np.int8]
Seen = npt.NDArray[np.int8]


class Buy(IntEnum):
    """What is held, or to be held: nothing, a spot machine, an on-demand machine."""

    WAIT = 0
    SPOT = 1
    ON_DEMAND = 2


@dataclass(frozen=True, slots=True)
class Terms:
    """What does not change during a run. A launch costs `restart_seconds`, paid, without progress.

    `worst_restart_seconds` is what a launch may take where it goes badly: the deadline is kept with this one.
    """

    tick_seconds: float  # between two decisions
    work_seconds: float
    deadline_seconds: float  # after the start
    restart_seconds: float
    spot_usd_per_hour: float
    on_demand_usd_per_hour: float
    worst_restart_seconds: float | None = None

    @property
    def safe_restart_seconds(self) -> float:
        """The launch that is reckoned with where the deadline is at stake."""
        return max(self.restart_seconds, self.worst_restart_seconds or 0.0)


@dataclass(frozen=True, slots=True)
class View:
    """One job at one moment. `spot_seen`: whether spot could be had in each tick since the start, None = nobody asked.

    The last one is the present tick. `owed_seconds`: what the machine that is held still needs to get the job going.
    """

    terms: Terms
    elapsed_seconds: float
    done_seconds: float
    held: Buy
    owed_seconds: float
    spot_seen: tuple[bool | None, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """What to hold during the next tick, and why, with the numbers it was weighed by."""

    buy: Buy
    why: str = ""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a policy expects of the rest of a run: time to the end and its spread, odds of falling back, cost."""

    seconds: float
    low_seconds: float  # one in ten is done sooner
    high_seconds: float  # one in ten later
    fallback_chance: float  # of buying on-demand at all from now on
    usd: float


class Purchase(Protocol):
    """Pure by contract: the same view gives the same answer; no clock, no chance, no I/O."""

    def choose(self, view: View) -> Choice:
        """What to hold during the next tick."""
        ...


@dataclass(frozen=True, slots=True)
class Moment:
    """Many runs of the same terms at the same time; arrays have one value a run. `spot_seen`: 1, 0, or -1 = nobody asked."""

    elapsed_seconds: float
    done_seconds: Floats
    held: Modes
    owed_seconds: Floats
    spot_seen: Seen


class Pilot(Protocol):
    """Steers many runs at once, from their first tick on, one call a tick."""

    def __call__(self, moment: Moment) -> Modes:
        """What to hold during the next tick: a `Buy` each run."""
        ...


@runtime_checkable
class Many(Protocol):
    """A policy that can also steer many runs at once, and then chooses as `choose` does: for back-tests."""

    def pilot(self, terms: Terms, runs: int, past: tuple[bool | None, ...] = ()) -> Pilot:
        """A fresh pilot; `past`: whether spot could be had in the ticks before its first, of all runs alike."""
        ...


@runtime_checkable
class Imagines(Protocol):
    """A policy that has an idea of how markets go on: forecasts need one."""

    def imagine(self, view: View, runs: int, ticks: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
        """(run, tick): whether spot can be had, from the present tick on."""
        ...
