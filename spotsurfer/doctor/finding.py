"""What a check found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]  # fail: jobs can't run here; warn: something works less well or not at all


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor. `remedy` is what to do, empty where nothing is to do."""

    level: Level
    text: str
    remedy: str = ""
    check: str = ""

    def as_dict(self) -> dict[str, str]:
        """For JSON."""
        return asdict(self)


def ok(text: str) -> Finding:
    """All is well."""
    return Finding("ok", text)


def warn(text: str, remedy: str) -> Finding:
    """It works, with a limit."""
    return Finding("warn", text, remedy)


def fail(text: str, remedy: str) -> Finding:
    """It does not work."""
    return Finding("fail", text, remedy)


def closed(path: str) -> Finding:
    """This user may not look there."""
    return fail(f"{path} is closed to this user", "run as its owner (sudo)")
