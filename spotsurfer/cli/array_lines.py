"""Tasks of arrays in few lines, as Slurm shows them: those that wait, and those that ended, stand in one line each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from spotsurfer.common.plain_words import STATES
from spotsurfer.common.units import duration, ranges
from spotsurfer.model.queueing.dependencies import NEVER

Json = dict[str, Any]


def lines(tasks: Iterable[Json]) -> list[list[Json]]:
    """Tasks that share a line, newest first: those without a machine by array, phase and reason, each other one alone."""
    found: dict[tuple[object, ...], list[Json]] = {}
    for task in tasks:
        key = (task["array"], task["phase"], task["exit_code"], task["machine"] and task["id"], hopeless(task))
        found.setdefault(key, []).append(task)
    return list(found.values())


def hopeless(task: Json) -> bool:
    """Whether it waits for what can't come any more."""
    return str(task["reason"]).startswith(NEVER)


def name(tasks: list[Json]) -> str:
    """What the line calls them: "abc-[5-1000%50]", or the id of a single one."""
    first = tasks[0]
    limit = f"%{first['array_limit']}" if first["array_limit"] and first["phase"] == "queued" else ""
    if len(tasks) == 1 and not limit:
        return str(first["id"])
    return f"{first['array']}-[{ranges(task['task'] for task in tasks)}{limit}]"


def row(tasks: list[Json], now: datetime) -> list[str]:
    """As a line of `list`: job, state, machine, cpu, saved by, unsaved, spent, age."""
    first = tasks[0]
    code = f", exit code {first['exit_code']}" if first["exit_code"] else ""
    state = STATES.get(str(first["phase"]), str(first["phase"])) + code + (", never begins" if hopeless(first) else "")
    age = max((now - datetime.fromisoformat(first["submitted_at"])).total_seconds() // 1, 0.0)
    return [name(tasks), state, first["machine"] or "-", "-", "-", "-", "-", duration(age)]


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
