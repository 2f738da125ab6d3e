"""Size policies: on which type of machine a running job should be, looked at once a minute.

What is *safe* is not their business: the guard takes a job up before its memory ends, a limit on moves an hour and what
the job itself foretold are kept, all by `core.size`, whatever a policy says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

USABLE = 0.95  # of a type's memory; at this level the guard freezes the job


@dataclass(frozen=True, slots=True)
class Kind:
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

    kinds: tuple[Kind, ...]
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
class Moment:
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

    def look(self, memory: Any, moment: Moment) -> tuple[Any, SizeChoice]:
        """What is remembered from now on, and the choice."""
        ...


def cheapest_holding(kinds: Sequence[Kind], need_bytes: float, cores: float) -> int | None:
    """The least money for the work at hand among types that hold so much; ties go to more cores, then to more memory."""
    fit = [i for i, k in enumerate(kinds) if k.usable_bytes >= need_bytes]
    return min(fit, key=lambda i: (rate(kinds[i], cores), -kinds[i].cores, -kinds[i].memory_bytes), default=None)


def rate(kind: Kind, cores: float) -> float:
    """USD an hour of undisturbed work that wants so many cores: fewer stretch the run."""
    return kind.usd_per_hour * max(1.0, cores / kind.cores)
