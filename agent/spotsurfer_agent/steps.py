"""The commands of a job, one after the other on one scratch: what they are, and how each of them ran."""

from __future__ import annotations

from dataclasses import dataclass, field

MAIN = "main"  # the one step of a job that names none; the one that [app] speaks of


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a job."""

    name: str
    command: list[str]
    protect: bool = True  # False: it is not saved; a machine that goes takes it along, and it begins again elsewhere
    always: bool = False  # it runs although an earlier one failed


@dataclass(frozen=True, slots=True)
class StepRun:
    """One step as it ran, or runs. Positions count bytes of each stream from the job's beginning; times are for people."""

    name: str
    number: int  # its place in the list of steps, from 0
    log: dict[str, int] = field(default_factory=dict)  # stream -> where its output begins
    began: str = ""
    exit_code: int | None = None  # None = it runs
    log_end: dict[str, int] = field(default_factory=dict)
    ended: str = ""
    cpu_seconds: float = 0.0  # of all attempts, known at its end
