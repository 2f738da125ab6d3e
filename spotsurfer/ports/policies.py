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

# ---- Parameters: a maker of policies declares its settings, so that `spotsurfer policies` can list them

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
    """A maker's parameters; empty if it declares none, or nonsense."""
    found = getattr(make, "parameters", ())
    return tuple(p for p in found if isinstance(p, Parameter)) if isinstance(found, tuple) else ()


# ---- Offer policies: they decide what is worth it, never what is *safe*


@dataclass(frozen=True, slots=True)
class PauseSeen:
    """The pause of the job in a move, in seconds."""

    final_save_seconds: float | None = (
        None  # forecast, after the live save that a planned move makes first; None = not measured
    )
    past_seconds: tuple[float, ...] = ()  # whole pauses of this job's earlier moves, oldest first

    @property
    def expected_seconds(self) -> float | None:
        """The best guess: the last pause, or the save alone if that takes longer; None = unknown."""
        known = [*self.past_seconds[-1:], *([] if self.final_save_seconds is None else [self.final_save_seconds])]
        return max(known, default=None)


class Policy(Protocol):
    """Pure by contract: the same arguments give the same answer; no clock, no randomness, no I/O."""

    def rank(self, job: Job, offers: Sequence[Offer], now: datetime) -> Sequence[Offer]:
        """The offers this job should try, best first. `offers` fit its size and are not cooling down."""
        ...

    def worth_moving(self, job: Job, here: Attempt, there: Offer, now: datetime, pause: PauseSeen) -> str | None:
        """A sentence about why the job should move from `here` to `there`, or None. `pause`: how long it would stand still."""
        ...


# ---- Interval policies: when a running job should be saved next
#
# They don't decide what is *safe*: the agent saves sooner if a notice's window requires it (its forecast), and saves on each
# notice.


@dataclass(frozen=True, slots=True)
class SaveView:
    """One job on one machine, just after a save (or its start). Durations in seconds.

    `lives`: of observed machines of this kind, lost or released. `noticed`, `unnoticed`: losses of them with and without
    a notice long enough to save the job. `cap_seconds`: the age at which the cloud reclaims every machine, None = it does not.
    """

    age_seconds: float  # of the machine
    save_seconds: float  # the job stands still so long for a live save
    restart_seconds: float  # from a loss until the job runs again, apart from the work to be done again
    final_seconds: float  # a final save takes so long, from the order to durable
    notice_seconds: float = 0.0  # time that a notice leaves for it; 0 = no notice
    lives: Lives = field(default_factory=Lives)
    noticed: int = 0
    unnoticed: int = 0
    band: int | None = None  # of interruption, 0 (rare) to 4; None = unknown
    cap_seconds: float | None = None
    left_seconds: float | None = None  # of work; None = unknown
    asked_seconds: float | None = None  # the interval set by user or operator; then the controller asks no policy


class Interval(Protocol):
    """Pure by contract: the same view gives the same answer; no clock, no chance, no I/O."""

    def save_after(self, view: SaveView) -> float | None:
        """Seconds of work until the next live save; None = none before the job's end."""
        ...


# ---- Purchase policies: what to buy now, so that a job is done by its deadline at the least expected cost
#
# A policy decides what is worth it. It need not ensure the deadline: `core.scheduling.deadline.kept` overrules its answers.

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

    `worst_restart_seconds` is the duration of a launch that goes badly: the deadline is kept with this one.
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
        """The duration of a launch that counts when the deadline is at stake."""
        return max(self.restart_seconds, self.worst_restart_seconds or 0.0)


@dataclass(frozen=True, slots=True)
class View:
    """One job at one moment. `spot_seen`: whether spot was available in each tick since the start, None = unknown.

    The last one is the present tick. `owed_seconds`: how long the held machine still needs until the job runs.
    """

    terms: Terms
    elapsed_seconds: float
    done_seconds: float
    held: Buy
    owed_seconds: float
    spot_seen: tuple[bool | None, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """What to hold during the next tick, and why, with the numbers behind it."""

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
    """Many runs of the same terms at the same time; arrays have one value per run. `spot_seen`: 1, 0, or -1 = unknown."""

    elapsed_seconds: float
    done_seconds: Floats
    held: Modes
    owed_seconds: Floats
    spot_seen: Seen


# Steers many runs at once, from their first tick on, with one call per tick: a `Buy` per run, to hold during the next tick.
Pilot = Callable[[PurchaseMoment], Modes]


@runtime_checkable
class Many(Protocol):
    """A policy that can also steer many runs at once, and then chooses as `choose` does: for back-tests."""

    def pilot(self, terms: Terms, runs: int, past: tuple[bool | None, ...] = ()) -> Pilot:
        """A fresh pilot; `past`: whether spot was available in the ticks before its first, the same for all runs."""
        ...


@runtime_checkable
class Imagines(Protocol):
    """A policy that can predict how markets go on, as forecasts need."""

    def imagine(self, view: View, runs: int, ticks: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
        """(run, tick): whether spot is available, from the present tick on."""
        ...


# ---- Placement policies: which of several pools a job should be on now, for a job that may move at will
#
# A policy decides what is worth it. It need not ensure the deadline: the caller overrules it (`core.scheduling.deadline`).


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool as observed. `free`: a spot machine is available; None = unknown. `spell_seconds`: how long that has held.

    `up` and `down`: observed spells with and without availability, the present one up to now included.
    """

    name: str
    spot_usd_per_hour: float
    on_demand_usd_per_hour: float
    free: bool | None
    spell_seconds: float = 0.0
    up: Lives = field(default_factory=Lives)
    down: Lives = field(default_factory=Lives)
    band: int | None = None  # of interruption, 0 (rare) to 4
    score: int | None = None  # of placement, 1 to 10 (an order will succeed)
    move_usd: float = 0.0  # cost of bringing the job's state there from another pool


@dataclass(frozen=True, slots=True)
class PlaceView:
    """One job at one moment. `at`: index of the pool where its machine is, else where its state lies; None = nowhere yet.

    `time_left_seconds` None: no deadline. `work_left_seconds` None: unknown. A launch costs `restart_seconds`, paid,
    without progress; `owed_seconds` of it are still to come on the held machine.
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


# ---- Size policies: on which type of machine a running job should be, decided once a minute
#
# They don't decide what is *safe*: `core.scheduling.rightsizing` enforces the guard's rescue before memory runs out, a limit
# on moves per hour, and the job's own forecast, whatever a policy answers.

USABLE = 0.95  # of a type's memory; at this level the guard freezes the job


@dataclass(frozen=True, slots=True)
class MachineKind:
    """A type of machine. `family`: types that differ only in size."""

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
    """The usage of an earlier run of the same named step, in order, each piece as long as with enough cores."""

    seconds: tuple[float, ...]
    memory_bytes: tuple[float, ...]
    cores: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if not self.seconds or not len(self.seconds) == len(self.memory_bytes) == len(self.cores):
            raise ValueError("an earlier run needs as many durations as memories and cores, and at least one")


@dataclass(frozen=True, slots=True)
class SizeTerms:
    """What does not change during a run. `threads`: cores the job can use at most, None = unknown.

    `asked_cores`: that its user asked for, None = those of `start`: a later run may begin on another type.
    """

    kinds: tuple[MachineKind, ...]
    start: int  # of `kinds`: what the job begins on, as its user asked
    move_seconds: float  # the job stands still so long, and both machines are paid
    threads: float | None = None
    earlier: tuple[Earlier, ...] = ()
    asked_cores: float | None = None


class Came(Enum):
    """How the job came to its present machine since the last look."""

    STAYED = "stayed"
    PLANNED = "planned"  # the policy's own wish
    FORCED = "forced"  # the guard: a near miss
    RECLAIMED = "reclaimed"  # the cloud reclaimed the previous machine


@dataclass(frozen=True, slots=True)
class SizeMoment:
    """One look per minute. Cores are those really used, so a small machine hides the need for more.

    `free`: the job must change machines anyway, so that another size costs no more than this one.
    """

    here: int
    seconds: float  # since the last look, without the time of moves
    memory_bytes: float  # now
    memory_max_bytes: float  # within those seconds
    cores: float  # mean of those seconds
    came: Came = Came.STAYED
    free: bool = False
    hinted_bytes: float = 0.0  # the job's own forecast
    hinted_cores: float = 0.0


@dataclass(frozen=True, slots=True)
class SizeChoice:
    """The type to move to, None = stay; and why, in a sentence."""

    to: int | None = None
    why: str = ""


class Size(Protocol):
    """Pure by contract: its memory of a run is a value that the caller passes back; no clock, no randomness, no I/O."""

    def begin(self, terms: SizeTerms) -> tuple[Any, int]:
        """The initial memory, and the type to begin on."""
        ...

    def look(self, memory: Any, moment: SizeMoment) -> tuple[Any, SizeChoice]:
        """The new memory, and the choice."""
        ...


def cheapest_holding(kinds: Sequence[MachineKind], need_bytes: float, cores: float) -> int | None:
    """The cheapest type for the work at hand that holds so much; ties go to more cores, then to more memory."""
    fit = [i for i, k in enumerate(kinds) if k.usable_bytes >= need_bytes]
    return min(fit, key=lambda i: (rate(kinds[i], cores), -kinds[i].cores, -kinds[i].memory_bytes), default=None)


def rate(kind: MachineKind, cores: float) -> float:
    """USD per hour of undisturbed work that wants so many cores; with fewer cores the run takes longer."""
    return kind.usd_per_hour * max(1.0, cores / kind.cores)
