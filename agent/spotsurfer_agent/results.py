"""What the store says of result files that were uploaded before the job's end."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class OutputObject:
    """One uploaded file."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Partial:
    """Outputs of a job that ran on, as they were at one time. Written last: its existence says that all of them are there."""

    number: int  # of the request
    attempt: int
    step: str
    at: str  # for people
    files: dict[str, OutputObject] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)  # patterns that matched nothing yet
