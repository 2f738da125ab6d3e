"""Which jobs of the list are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from pydantic import BaseModel, Field

from spotsurfer.controller.phases import PHASES
from spotsurfer.hints import did_you_mean
from spotsurfer.model.errors import UsageError
from spotsurfer.model.job import JobState
from spotsurfer.ports.service import JobStatus

STATES = (*PHASES, *(s for s in JobState if s not in PHASES))


class JobsQuery(BaseModel):
    """What jobs must be like to be listed; the newest `limit` of those that are."""

    ended: bool = Field(True, description="Those that have ended, too")
    state: list[str] = Field([], description="Their phase or state is one of these")
    tag: list[str] = Field([], description="They have all these tags, name=value; or name alone, with any value")
    name: str | None = Field(None, description="Their name; * and ? are wildcards")
    limit: int | None = Field(None, ge=1)

    def of(self, jobs: Sequence[JobStatus]) -> Sequence[JobStatus]:
        """Those of the jobs; raises UsageError for a state that none can have."""
        for word in self.state:
            if word not in STATES:
                raise UsageError(f"The state is {word!r}. {did_you_mean(word, STATES)}")
        return [x for x in jobs if self._wants(x)][: self.limit]

    def _wants(self, status: JobStatus) -> bool:
        spec = status.job.spec
        return (
            (not self.state or not {status.phase, str(status.job.state)}.isdisjoint(self.state))
            and (self.name is None or fnmatchcase(spec.name, self.name))
            and all(_has(spec.tags, tag) for tag in self.tag)
        )


def _has(tags: dict[str, str], wanted: str) -> bool:
    name, equals, value = wanted.partition("=")
    return name in tags and (not equals or tags[name] == value)
