"""Placement policies: which pool a job should be on now, for a job that may move at will. Several pools at once.

A policy says what is worth it. That the deadline is kept is not its business: whoever asks overrules it (`core.deadline`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from spotsurfer.model.lives import Lives
from spotsurfer.ports.purchase import Buy


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
