"""Budgets of several jobs: whom one is for, how much in which time, and what it did so far. Values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from math import ceil

from spotsurfer.model.job import Job, JobId
from spotsurfer.model.money import MICROS, usd

EVERYTHING = "all"
WARN_AT = (50, 80, 100)
USED_UP = 0  # in the place of a share: the budget holds its jobs
DAY = timedelta(days=1)
# Names hold no line breaks, so that a scope is one word of a command.
SCOPE = re.compile(r"all|(?:owner|project|job):.{1,200}|tag:[^=]{1,100}=.{0,200}")
SCOPES_TEXT = "all, owner:NAME, project:NAME, tag:NAME=VALUE or job:ID"


class Per(StrEnum):
    """How long an amount is to last. Days, weeks (from Monday) and months are those of UTC."""

    TOTAL = "total"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class Budget:
    """An amount, in micro-dollars, for all jobs of a scope together. `warn_at`: percent of it, ascending."""

    scope: str
    usd_micros: int
    per: Per = Per.TOTAL
    warn_at: Sequence[int] = WARN_AT

    def __str__(self) -> str:
        time = "in all" if self.per is Per.TOTAL else f"per {self.per}"
        return f"the budget of {self.scope}, {usd(self.usd_micros)} USD {time}"

    def remedy(self, spent_usd_micros: int) -> str:
        """The command that raises it enough to go on; half as much again, in whole dollars if it is more than a few."""
        wanted = max(self.usd_micros, spent_usd_micros) * 3 / 2
        unit = MICROS if wanted > 10 * MICROS else MICROS // 100
        amount = f"{ceil(wanted / unit) * unit / MICROS:.2f}".removesuffix(".00")
        per = "" if self.per is Per.TOTAL else f" --per {self.per}"
        return f"`spotsurfer budget set {shlex.quote(self.scope)} {amount}{per}`"


@dataclass(frozen=True, slots=True)
class BudgetSeen:
    """A budget at one moment. `begins`, `ends`: of the time that it counts now; None = it has no such limit.

    `spent_usd_micros` since then, machines that are being released included. `told`: shares that were warned of in this time,
    at this amount or a larger one; USED_UP among them: it was found used up, and holds its jobs until the amount is raised.
    """

    budget: Budget
    spent_usd_micros: int
    begins: datetime | None = None
    ends: datetime | None = None
    told: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """A budget for people. `configured`: it stands in the configuration; `held`: jobs that it holds now.

    `percent` of it are spent. `set_at`, `set_by`: of one that was set by command.
    """

    scope: str
    per: Per
    usd_micros: int
    warn_at: Sequence[int]
    spent_usd_micros: int
    percent: float
    begins: datetime | None
    ends: datetime | None
    configured: bool
    used_up: bool
    held: Sequence[JobId] = field(default_factory=tuple)
    set_at: str = ""
    set_by: str = ""


def scopes_of(job: Job) -> tuple[str, ...]:
    """The scopes that a job belongs to."""
    spec = job.spec
    named = [f"{kind}:{name}" for kind, name in (("job", job.id), ("owner", job.owner), ("project", spec.project)) if name]
    return EVERYTHING, *named, *(f"tag:{name}={value}" for name, value in spec.tags.items())


def begins(per: Per, now: datetime) -> datetime | None:
    """When the present day, week or month began; None for `total`."""
    day = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first = {Per.DAY: day, Per.WEEK: day - day.weekday() * DAY, Per.MONTH: day.replace(day=1)}
    return first.get(per)


def ends(per: Per, now: datetime) -> datetime | None:
    """When it will be over; None for `total`."""
    since = begins(per, now)
    if since is None:
        return None
    if per is Per.MONTH:
        return (since + 32 * DAY).replace(day=1)
    return since + (DAY if per is Per.DAY else 7 * DAY)
