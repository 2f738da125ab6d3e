"""Bodies and queries received over HTTP, version 1."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, SecretStr

from spotsurfer.common.input_errors import did_you_mean
from spotsurfer.core.facts.attempt_view import PHASES
from spotsurfer.model.errors import JobFileError, UsageError
from spotsurfer.model.job import JOB_ID, JobSpec, JobState
from spotsurfer.model.market import Market
from spotsurfer.ports.service import JobStatus

Mode = Annotated[int, Field(ge=0, le=0o777)]
STATES = (*PHASES, *(s for s in JobState if s not in PHASES))
WAIT_MAX_SECONDS = 30.0


class Asked(BaseModel):
    """Base of everything received: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


class NameBody(Asked):
    """A job to come."""

    name: str


class SubmitBody(Asked):
    """`modes`: permission bits of each uploaded input, by path. `secrets`: values by name, in base64; never answered."""

    spec: JobSpec
    modes: dict[str, Mode] = {}
    secrets: dict[str, SecretStr] = {}

    def opened(self) -> dict[str, bytes]:
        """The secrets; raises JobFileError naming one that is not base64."""
        found = {}
        for name, value in self.secrets.items():
            try:
                found[name] = base64.b64decode(value.get_secret_value(), validate=True)
            except ValueError:
                raise JobFileError(f"secrets.{name} is not base64.") from None
        return found


class HomeBody(Asked):
    """Digests of what a folder of the submit host holds."""

    home: str = Field(min_length=1, max_length=4096)
    digests: list[str]


class TreeBody(Asked):
    """The tree of a folder, by its SHA-256."""

    tree: str = Field(pattern="^[0-9a-f]{64}$")


class NewJobBody(SubmitBody):
    """`job`: the id that its inputs were uploaded under; "" = it gets one. `held`: it waits until its user resumes it."""

    job: Annotated[str, Field(pattern=f"^({JOB_ID.pattern})?$")] = ""
    held: bool = False


class SubmitManyBody(Asked):
    """Jobs to be made together, or none of them."""

    jobs: Annotated[list[NewJobBody], Field(max_length=10_000)]


class PlanBody(Asked):
    """A job that is not submitted: what would become of it?"""

    spec: JobSpec


class MoveBody(Asked):
    """Both empty: any other machine."""

    instance_type: str | None = None
    market: Market | None = None


class SignalBody(Asked):
    """A name like USR1; B:USR1 for its command alone, S:USR1 for all its other processes."""

    signal: Annotated[str, Field(max_length=20)]


class BudgetBody(Asked):
    """What a job may cost in all; null = it has no limit of its own."""

    usd_micros: int | None


class PriorityBody(Asked):
    """How much a job counts; from -100 to 100."""

    priority: int


class FromBody(Asked):
    """The checkpoint to go on from: its name, or its sequence number."""

    checkpoint: str


class ForkBody(Asked):
    """Both empty: the newest checkpoint, under the same name."""

    checkpoint: str | None = None
    name: str | None = None


class StoreBody(Asked):
    """Of one job, or of all."""

    job: str | None = None
    read: bool = False
    dry_run: bool = False


class TimelineQuery(BaseModel):
    """Which part of the timeline; see `Service.timeline`."""

    after: int = Field(0, ge=0, description="Only moments with a greater number")
    since: AwareDatetime | None = Field(None, description="Only what was then or later; with a zone")
    last: int | None = Field(None, ge=1, le=100_000, description="Of these only the newest so many")
    wait: float = Field(0, ge=0, le=WAIT_MAX_SECONDS, description="Seconds to wait for news before an empty answer")


class Sorting(StrEnum):
    """An order of jobs; those that are equal stand newest first."""

    AGE = "age"  # newest first
    COST = "cost"  # dearest first
    NAME = "name"
    STATE = "state"  # those that wait, those that run, those that have ended
    PRIORITY = "priority"  # highest first


SORTED: dict[Sorting, Callable[[JobStatus], Any]] = {
    Sorting.AGE: lambda _: 0,
    Sorting.COST: lambda x: -x.usd_micros,
    Sorting.NAME: lambda x: x.job.spec.name,
    Sorting.STATE: lambda x: STATES.index(x.phase),
    Sorting.PRIORITY: lambda x: -x.level,
}


class JobsQuery(BaseModel):
    """What jobs must be like to be listed, and their order; the first `limit` of those that are."""

    ended: bool = Field(True, description="Those that have ended, too")
    state: list[str] = Field([], description="Their phase or state is one of these")
    tag: list[str] = Field([], description="They have all these tags, name=value; or name alone, with any value")
    name: str | None = Field(None, description="Their name; * and ? are wildcards")
    owner: str | None = Field(None, description="Who submitted them")
    project: str | None = Field(None, description="Their project; * and ? are wildcards")
    tasks: bool = Field(True, description="Tasks of arrays, too")
    sort: Sorting = Field(Sorting.AGE, description="Newest first, or by one of these")
    limit: int | None = Field(None, ge=1, description="Only the first so many")

    def of(self, jobs: Sequence[JobStatus]) -> Sequence[JobStatus]:
        """Those of the jobs; raises UsageError for a state that none can have."""
        for word in self.state:
            if word not in STATES:
                raise UsageError(f"The state is {word!r}. {did_you_mean(word, STATES)}")
        return sorted((x for x in jobs if self._wants(x)), key=SORTED[self.sort])[: self.limit]

    def _wants(self, status: JobStatus) -> bool:
        spec = status.job.spec
        return (
            (not self.state or not {status.phase, str(status.job.state)}.isdisjoint(self.state))
            and (self.name is None or fnmatchcase(spec.name, self.name))
            and (self.project is None or fnmatchcase(spec.project, self.project))
            and all(_has(spec.tags, tag) for tag in self.tag)
        )


def _has(tags: dict[str, str], wanted: str) -> bool:
    name, equals, value = wanted.partition("=")
    return name in tags and (not equals or tags[name] == value)
