"""The cost report as values: what was spent on what, what else would have cost, and what the month will come to.

Money is integer micro-dollars, time seconds. Parts add up to their sum to the last micro-dollar.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from spotsurfer.model.charges import ChargeKind
from spotsurfer.model.job import JobId
from spotsurfer.model.market import Market


class Use(StrEnum):
    """What the paid time of machines was for. All but WORK is waste."""

    WORK = "work"
    WAITING = "waiting"  # a machine booted or waited, and no other had the job
    RESTORE = "restore"  # the job was brought back, or started
    FREEZE = "freeze"  # the job stood still to be saved
    REPEATED = "repeated"  # work that was lost with the machine
    OVERLAP = "overlap"  # a second machine during a move
    MINIMUM = "minimum"  # seconds that a cloud bills beyond the use
    REHEARSAL = "rehearsal"  # a machine that only showed that a checkpoint lives


class Saving(StrEnum):
    """Why less was spent than on the machine that was asked for, on demand. Negative amounts are extra cost."""

    SPOT = "spot"  # spot prices instead of list prices
    RETURN_TO_SPOT = "return to spot"  # the same on machines that the job had after one on demand
    SIZE = "size"  # machines of another type than the one asked for
    IDLE = "idle suspension"  # time without a machine while nothing was to do
    OVERHEAD = "overhead"  # paid time that one machine would not have needed
    OTHERS = "beside machines"  # disks, addresses, transfer, the store …


@dataclass(frozen=True, slots=True)
class Amount:
    """Paid seconds of machines for one use, and their price."""

    use: Use
    seconds: float
    usd_micros: int


@dataclass(frozen=True, slots=True)
class Saved:
    """Money that was saved for one cause."""

    cause: Saving
    usd_micros: int


@dataclass(frozen=True, slots=True)
class Alternative:
    """What the same work would have cost otherwise. None = not known, and `how` says why."""

    name: str  # "on demand", "lasting type", "spot without moves"
    usd_micros: int | None
    how: str  # the formula in a sentence, with its numbers


@dataclass(frozen=True, slots=True)
class MachineCost:
    """What a job's machine cost in the period, with its disk, address, transfer and requests."""

    job: JobId  # that pays: of a rehearsal its parent
    attempt: int
    pool: str  # "provider/zone/type"
    market: Market
    resource: str  # the cloud's name of it
    began_at: datetime
    ended_at: datetime | None  # None = it still costs money
    seconds: float
    usd_micros: int
    usd_micros_on_demand: int
    ended: str
    name: str = ""
    owner: str = ""
    run_as: str = ""
    project: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobLabels:
    """By what the cost of a job can be added up."""

    job: JobId
    name: str
    owner: str
    run_as: str  # the Unix user that it runs as; "" = one of its own
    project: str
    tags: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Group:
    """The lines of one owner, tag, project … added up. `machines`: one that served several jobs counts once."""

    group: str
    machines: int
    seconds: float
    usd_micros: int
    usd_micros_on_demand: int


@dataclass(frozen=True, slots=True)
class MonthForecast:
    """spent + usd_micros_per_hour * hours_left = usd_micros, rounded up."""

    month: str  # "2026-11", in UTC
    spent_usd_micros: int
    usd_micros_per_hour: int  # of all that costs money now
    hours_left: float
    usd_micros: int


@dataclass(frozen=True, slots=True)
class CostReport:
    """Everything that `report` says.

    usd_micros = sum of `kinds` = sum of `attempts` and of what is no machine's = sum of `uses` and of all kinds but machine,
    minimum and gpu.
    on demand - usd_micros = sum of `savings`.
    """

    since: datetime | None
    until: datetime | None
    at: datetime
    usd_micros: int
    usd_micros_on_demand: int  # the same hours of the same types at list price
    kinds: Mapping[ChargeKind, int]
    uses: Sequence[Amount]
    savings: Sequence[Saved]
    alternatives: Sequence[Alternative]
    kept_seconds: float  # work that did not have to be repeated, because it was saved
    repeated_seconds: float
    frozen_seconds: float
    moves: int
    pause_seconds: float
    attempts: Sequence[MachineCost]
    labels: Sequence[JobLabels]  # of the jobs that pay
    groups: Sequence[Group] = ()
    forecast: MonthForecast | None = None  # None: of an ended period, or of single jobs
