"""The commands of a job that has more than one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAIN, SETUP = "main", "setup"


@dataclass(frozen=True, slots=True)
class JobStep:
    """One command of a job; all of them run one after the other, on the same files."""

    name: str
    command: tuple[str, ...]
    protect: bool = True  # False: nothing of it is saved, it begins again elsewhere when its machine goes
    always: bool = False  # it runs although an earlier one failed


def main_command(steps: Sequence[JobStep]) -> tuple[str, ...]:
    """What stands for the job where it is named by one command: the step `main`, else the first that is protected."""
    named = [s for s in steps if s.name == MAIN] or [s for s in steps if s.protect] or list(steps)
    return named[0].command if named else ()
