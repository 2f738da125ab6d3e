"""What a dialect of a metadata service must tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class NoticeError(Exception):
    """The metadata service did not answer, or in a way that says nothing. Never a reason to disturb the job."""


@dataclass(frozen=True, slots=True)
class Said:
    """The cloud's notice. `seconds_left` counts from the request; None = no time was said."""

    kind: str  # facts.INTERRUPTION | facts.REBALANCE
    content: str  # what exactly was said: equal content is the same notice
    seconds_left: float | None


class Dialect(Protocol):
    """One cloud's metadata service. Both methods raise NoticeError."""

    def notice(self) -> Said | None:
        """The notice in force, an interruption before anything else; None = the service says that there is none."""
        ...

    def instance(self) -> str:
        """The cloud's name for this machine."""
        ...
