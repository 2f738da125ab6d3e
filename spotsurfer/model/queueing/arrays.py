"""Arrays: many tasks from one specification, each a job of its own. Ids, the numbers of tasks, and `{task}`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from spotsurfer.model.job import JobId, JobSpec

TASKS_MAX = 100_000
TASK_MAX = 9_999_999  # its digits must find room in a job's id
PLACE = re.compile(r"(?<!\$)\{task\}")  # a shell's own "${task}" is left alone
EXAMPLES = '"1-1000%50", "0-9:3" or "1,5,7-9"'
_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?")


@dataclass(frozen=True, slots=True)
class Array:
    """The tasks of an array, in their order; at most `limit` of them have a machine at a time, 0 = as many as can."""

    tasks: tuple[int, ...]
    limit: int = 0


def read_array(text: str) -> Array:
    """The tasks that a text like "1-1000%50" names. Raises ValueError with the second half of a sentence."""
    ranges, percent, limit = text.replace(" ", "").partition("%")
    if percent and not (limit.isdecimal() and 0 < int(limit) <= TASK_MAX):
        raise ValueError(f"is {text!r}: after % stands how many tasks may run at a time, like 50")
    found: set[int] = set()
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"is {text!r}, expected numbers of tasks, like {EXAMPLES}")
        first, last, step = (None if x is None else int(x) for x in match.groups())
        assert first is not None
        if last is not None and last < first:
            raise ValueError(f"is {text!r}: {part} ends before it begins")
        if step == 0:
            raise ValueError(f"is {text!r}: {part} has steps of 0")
        span = range(first, (first if last is None else last) + 1, step or 1)
        if len(found) + len(span) > TASKS_MAX:
            raise ValueError(f"is {text!r}: that is more than {TASKS_MAX} tasks")
        found |= set(span)
    return Array(tuple(sorted(found)), int(limit or 0))


def limit_of(text: str) -> int:
    """How many tasks may have a machine at a time, of a text that `read_array` takes; 0 = as many as can."""
    return int(text.partition("%")[2] or 0)


def jobs_of_row(tasks: str) -> int:
    """How many jobs a row of a queue stands for, that folds the tasks "3-9,12"; "" = it is one job."""
    return len(read_array(tasks).tasks) if tasks else 1


def task_id(array: str, task: int) -> JobId:
    """The id of a task."""
    return JobId(f"{array}-{task}")


def of_task(spec: JobSpec, task: int) -> JobSpec:
    """The specification of one task: `{task}` is replaced in command, folder, outputs, environment and tags."""
    if not any(PLACE.search(text) for text in _texts(spec)):
        return spec
    steps = tuple(replace(step, command=_all(step.command, task)) for step in spec.steps)
    return dataclasses.replace(
        spec,
        command=_all(spec.command, task),
        steps=steps,
        folder=_one(spec.folder, task),
        outputs=_all(spec.outputs, task),
        environment={name: _one(value, task) for name, value in spec.environment.items()},
        tags={name: _one(value, task) for name, value in spec.tags.items()},
    )


def _texts(spec: JobSpec) -> Iterable[str]:
    yield from (*spec.command, spec.folder, *spec.outputs, *spec.environment.values(), *spec.tags.values())
    for step in spec.steps:
        yield from step.command


def _all(texts: Sequence[str], task: int) -> tuple[str, ...]:
    return tuple(_one(text, task) for text in texts)


def _one(text: str, task: int) -> str:
    return PLACE.sub(str(task), text)
