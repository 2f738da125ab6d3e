"""Licences that jobs take from pools: what the operator says of a pool, what is known of it, and who has them. Values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from spotsurfer.model.job import JobId

KIND = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62})")  # of licences, like a feature of a licence server
KIND_LETTERS = "up to 63 letters, digits, '.', '_' or '-'"


@dataclass(frozen=True, slots=True)
class LicenceRule:
    """One pool, as its operator set it. `total` or a `command` that prints how many there are for jobs altogether.

    A number that the command printed counts for `keep_seconds` after the next ones failed. `reserve` of them are for others.
    """

    kind: str
    total: int | None = None
    command: tuple[str, ...] = ()
    every_seconds: float = 60.0
    keep_seconds: float = 600.0
    reserve: int = 0


@dataclass(frozen=True, slots=True)
class LicencePool:
    """How many licences of a kind the jobs may have altogether now. `why`: what is wrong with the number; "" = nothing."""

    kind: str
    total: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class LicenceUse:
    """A job with licences of a pool, or one that waits for them."""

    job: JobId
    count: int


@dataclass(frozen=True, slots=True)
class LicenceStatus:
    """A pool with those who have its licences and those who wait for them. `total`: for jobs, without `reserve`."""

    kind: str
    total: int
    used: int
    reserve: int
    held: Sequence[LicenceUse]
    waiting: Sequence[LicenceUse]
    waiting_jobs: int  # of all jobs; `held` and `waiting` may name only those of the one who asks
    command: Sequence[str]  # that counts them; empty = the configuration does
    read_at: datetime | None  # when the command last printed a number
    trouble: str  # why its newest run printed none; "" = it did
