"""The interfaces of all policies: offers, checkpoint interval, purchase, placement, size, and the parameters they take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, IntEnum
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from spotsurfer.model.job import Attempt, Job
from spotsurfer.model.lifetimes import Lives
from spotsurfer.model.market import Offer

# What a maker of policies says of its settings, so that `spotsurfer policies` can list them.

Made = TypeVar("Made", bound=Callable[..., Any])
LEAVE_OUT = "leave_out"  # a policy with this parameter learns: back-tests leave out what it learned from the pool in question


@dataclass(frozen=True, slots=True)
class Parameter:
    """One key of the policy's table, its default, and what it means in a few words."""

    name: str
    default: object
    text: str


def parameters(*given: Parameter) -> Callable[[Made], Made]:
    """Decorates a maker with its parameters."""

    def decorate(make: Made) -> Made:
        make.parameters = given  # type: ignore[attr-defined]
        return make

    return decorate


def parameters_of(make: Callable[..., Any]) -> tuple[Parameter, ...]:
    """What a maker says; nothing where it says nothing, or nonsense."""
    found = getattr(make, "parameters", ())
    return tuple(p for p in found if isinstance(p, Parameter)) if isinstance(found, tuple) else ()


# Policies: what is worth it. What is *safe* is never their business.


@dataclass(frozen=True, slots=True)
class PauseSeen:
    """What a move costs the job in standing still, in seconds."""

    final_save_seconds: float | None = (
        None  # forecast, after the live save that a planned move makes first; None = not measured
    )
    past_seconds: tuple[float, ...] = ()  # whole pauses of this job's earlier moves, oldest first

    @property
    def expected_seconds(self) -> float | None:
        """The best guess: the last pause, or what the save alone takes where that is more; None = nothing is known."""
        known = [*self.past_seconds[-1:], *([] if self.final_save_seconds is None else [self.final_save_seconds])]
        return max(known, default=None)


class Policy(Protocol):
    """Pure by contract: the same arguments give the same answer; no clock, no chance, no I/O."""

    def rank(self, job: Job, offers: Sequence[Offer], now: datetime) -> Sequence[Offer]:
        """The offers this job should try, best first. `offers` fit its size and are not cooling down."""
        ...

    def worth_moving(self, job: Job, here: Attempt, there: Offer, now: datetime, pause: PauseSeen) -> str | None:
        """A sentence why the job should move from `here` to `there`, or None. `pause`: what it would cost in standing still."""
        ...


# Interval policies: when a job that runs should be saved next.
#
# What is *safe* is not their business: the agent hastens saves where a notice's window asks for it (its `fit`), and saves
# on each notice.


@dataclass(frozen=True, slots=True)
class SaveView:
    """One job on one machine, just after a save (or its start). Durations in seconds.

    `lives`: of machines of this kind that were seen to run, lost or given back. `noticed`, `unnoticed`: losses of them
    with and without a notice long enough to save the job. `cap_seconds`: the age at which the cloud takes every
    machine, None = it does not.
    """

    age_seconds: float  # of the machine
    save_seconds: float  # the job stands still so long for a live save
    restart_seconds: float  # from a loss until the job runs again, apart from the work to be done again
    final_seconds: float  # a final save takes so long to be durable
    notice_seconds: float = 0.0  # what a notice leaves for it; 0 = none is given
    lives: Lives = field(default_factory=Lives)
    noticed: int = 0
    unnoticed: int = 0
    band: int | None = None  # of interruption, 0 (rare) to 4; None = unknown
    cap_seconds: float | None = None
    left_seconds: float | None = None  # of work; None = nobody knows
    asked_seconds: float | None = None  # the interval that user or operator named; the controller asks nobody then


class Interval(Protocol):
    """Pure by contract: the same view gives the same answer; no clock, no chance, no I/O."""

    def save_after(self, view: SaveView) -> float | None:
        """Seconds of work until the next live save; None = none before the job's end."""
        ...


# Purchase policies: what to buy now, so that a job is done by its deadline at the least expected cost.
#
# A policy says what is worth it. That the deadline is kept is not its business: `core.deadline.kept` overrules whatever it
# says.

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
class PurchaseMoment:
    """Many runs of the same terms at the same time; arrays have one value a run. `spot_seen`: 1, 0, or -1 = nobody asked."""

    elapsed_seconds: float
    done_seconds: Floats
    held: Modes
    owed_seconds: Floats
    spot_seen: Seen


class Pilot(Protocol):
    """Steers many runs at once, from their first tick on, one call a tick."""

    def __call__(self, moment: PurchaseMoment) -> Modes:
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


# Placement policies: which pool a job should be on now, for a job that may move at will. Several pools at once.
#
# A policy says what is worth it. That the deadline is kept is not its business: whoever asks overrules it (`core.deadline`).


@dataclass(frozen=True, slots=True)
class PoolView:
    """What is seen of one pool. `free`: a spot machine can be had; None = nobody knows. `spell_seconds`: for so long it is so.

    `up` and `down`: spells of being free and of not being free that were seen before, the present one up to now included.
    """

    name: str
    spot_usd_per_hour: float
    on_demand_usd_per_hour: float
    free: bool | None
    spell_seconds: float = 0.0
    up: Lives = field(default_factory=Lives)
    down: Lives = field(default_factory=Lives)
    band: int | None = None  # of interruption, 0 (rare) to 4
    score: int | None = None  # of placement, 1 to 10 (an order will be met)
    move_usd: float = 0.0  # what bringing the job's state there from another pool costs


@dataclass(frozen=True, slots=True)
class PlaceView:
    """One job at one moment. `at`: index of the pool where its machine is, else where its state lies; None = nowhere yet.

    `time_left_seconds` None: no deadline. `work_left_seconds` None: nobody knows. A launch costs `restart_seconds`,
    paid, without progress; `owed_seconds` of it are still to come on the machine that is held.
    """

    pools: tuple[PoolView, ...]
    tick_seconds: float  # until the next decision
    work_left_seconds: float | None
    time_left_seconds: float | None
    restart_seconds: float
    held: Buy = Buy.WAIT
    at: int | None = None
    owed_seconds: float = 0.0
    job_seconds: tuple[float, float] | None = None  # work and time of the whole job, from its submission; None = unknown


@dataclass(frozen=True, slots=True)
class Placed:
    """What to hold until the next decision, and where (index of the pool; with WAIT where the state lies)."""

    buy: Buy
    pool: int | None
    why: str = ""


class Placement(Protocol):
    """Pure by contract: the same view gives the same answer; no clock, no chance, no I/O."""

    def place(self, view: PlaceView) -> Placed:
        """What to hold until the next decision, and where."""
        ...


# Size policies: on which type of machine a running job should be, looked at once a minute.
#
# What is *safe* is not their business: the guard takes a job up before its memory ends, a limit on moves an hour and what
# the job itself foretold are kept, all by `core.size`, whatever a policy says.

USABLE = 0.95  # of a type's memory; at this level the guard freezes the job


@dataclass(frozen=True, slots=True)
class MachineKind:
    """A type of machine. `family`: types that differ in nothing but size."""

    name: str
    family: str
    cores: float
    memory_bytes: int
    usd_per_hour: float

    @property
    def usable_bytes(self) -> float:
        """Memory below the guard's level."""
        return USABLE * self.memory_bytes


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an earlier run of the same named step used, in order, each for so long as if no core had been missing."""

    seconds: tuple[float, ...]
    memory_bytes: tuple[float, ...]
    cores: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if not self.seconds or not len(self.seconds) == len(self.memory_bytes) == len(self.cores):
            raise ValueError("an earlier run needs as many durations as memories and cores, and at least one")


@dataclass(frozen=True, slots=True)
class SizeTerms:
    """What does not change during a run. `threads`: cores the job can use at most, None = nobody knows."""

    kinds: tuple[MachineKind, ...]
    start: int  # of `kinds`: what the job begins on, as its user asked
    move_seconds: float  # the job stands still so long, and both machines are paid
    threads: float | None = None
    earlier: tuple[Earlier, ...] = ()


class Came(Enum):
    """How the job came to the machine that it is on, since it was last looked at."""

    STAYED = "stayed"
    PLANNED = "planned"  # the policy's own wish
    FORCED = "forced"  # the guard: a near miss
    RECLAIMED = "reclaimed"  # the cloud took the machine before


@dataclass(frozen=True, slots=True)
class SizeMoment:
    """What is seen once a minute; cores are those really used, so that on a small machine the wish for more is hidden.

    `free`: the job has to change machines anyhow, so that another size costs no more than this one.
    """

    here: int
    seconds: float  # since it was last looked at, without the time of moves
    memory_bytes: float  # now
    memory_max_bytes: float  # within those seconds
    cores: float  # mean of those seconds
    came: Came = Came.STAYED
    free: bool = False
    hinted_bytes: float = 0.0  # the job said that it will need so much
    hinted_cores: float = 0.0


@dataclass(frozen=True, slots=True)
class SizeChoice:
    """Where to, None = stay; and why, in a sentence."""

    to: int | None = None
    why: str = ""


class Size(Protocol):
    """Pure by contract: what it remembers of a run is a value that it is given back; no clock, no chance, no I/O."""

    def begin(self, terms: SizeTerms) -> tuple[Any, int]:
        """What is remembered at first, and the type to begin on."""
        ...

    def look(self, memory: Any, moment: SizeMoment) -> tuple[Any, SizeChoice]:
        """What is remembered from now on, and the choice."""
        ...


def cheapest_holding(kinds: Sequence[MachineKind], need_bytes: float, cores: float) -> int | None:
    """The least money for the work at hand among types that hold so much; ties go to more cores, then to more memory."""
    fit = [i for i, k in enumerate(kinds) if k.usable_bytes >= need_bytes]
    return min(fit, key=lambda i: (rate(kinds[i], cores), -kinds[i].cores, -kinds[i].memory_bytes), default=None)


def rate(kind: MachineKind, cores: float) -> float:
    """USD an hour of undisturbed work that wants so many cores: fewer stretch the run."""
    return kind.usd_per_hour * max(1.0, cores / kind.cores)
