"""Rows of tasks of arrays as the controller folds them: those that wait share a row, and those that ended do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from spotsurfer.common.plain_words import STATES
from spotsurfer.common.units import duration
from spotsurfer.model.queueing.arrays import read_array
from spotsurfer.model.queueing.dependencies import NEVER

Json = dict[str, Any]


def hopeless(task: Json) -> bool:
    """Whether it waits for what can't come any more."""
    return str(task["reason"]).startswith(NEVER)


def name(task: Json) -> str:
    """What a row calls its tasks: "abc-[5-1000%50]", or the id of a single one."""
    limit = f"%{task['array_limit']}" if task["array_limit"] and task["phase"] == "queued" else ""
    return f"{task['array']}-[{task['tasks'] or task['task']}{limit}]" if task["tasks"] or limit else str(task["id"])


def has_one_of(task: Json, numbers: str) -> bool:
    """Whether a row stands for one of the tasks "3-5,9"."""
    return not set(read_array(numbers).tasks).isdisjoint(read_array(task["tasks"] or str(task["task"])).tasks)


def row(task: Json, now: datetime) -> list[str]:
    """As a line of `list`: job, state, machine, cpu, saved by, unsaved, spent, age."""
    code = f", exit code {task['exit_code']}" if task["exit_code"] else ""
    state = STATES.get(str(task["phase"]), str(task["phase"])) + code + (", never begins" if hopeless(task) else "")
    age = max((now - datetime.fromisoformat(task["submitted_at"])).total_seconds() // 1, 0.0)
    return [name(task), state, (not task["ended_at"] and task["machine"]) or "-", "-", "-", "-", "-", duration(age)]


def wanted(tasks: Iterable[Json], states: list[str], glob: str | None, project: str | None) -> list[Json]:
    """Those of these phases or states, of a name and of a project; * and ? are wildcards."""
    fits: Callable[[str, str | None], bool] = lambda text, pattern: pattern is None or fnmatchcase(text, pattern)  # noqa: E731
    return [
        task
        for task in tasks
        if (not states or not {task["phase"], task["state"]}.isdisjoint(states))
        and fits(task["name"], glob)
        and fits(task["project"], project)
    ]
