"""Steps of a job on the wire."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from spotsurfer.model.steps import JobStep


class StepBody(BaseModel):
    """One command of a job that has several."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)
    name: str
    command: list[str]
    protect: bool = True
    always: bool = False


class StepOut(BaseModel):
    """One step as it ran, or runs: then `exit_code` is null. `log`, `log_end`: bytes of each stream from the beginning."""

    model_config = ConfigDict(from_attributes=True)
    name: str
    number: int
    log: dict[str, int]
    began: str
    exit_code: int | None
    log_end: dict[str, int]
    ended: str
    cpu_seconds: float


def to_steps(bodies: Sequence[StepBody]) -> tuple[JobStep, ...]:
    """The nouns."""
    return tuple(JobStep(b.name, tuple(b.command), b.protect, b.always) for b in bodies)
