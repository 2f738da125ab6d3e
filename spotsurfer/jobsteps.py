"""`[[steps]]` of a job file: from TOML to values, and what is wrong with them."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from spotsurfer.hints import did_you_mean
from spotsurfer.model.steps import MAIN, SETUP, JobStep

KEYS = ("name", "command", "protect", "always")
NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,39})")
STEPS_MAX = 50
TEXT_MAX_BYTES = 128 << 10  # of one command
EXAMPLE = '[[steps]] name = "setup", command = "…"'


def read_steps(value: object) -> tuple[JobStep, ...]:
    """The steps that a job file names. Raises ValueError: the second half of a sentence."""
    if not isinstance(value, list) or not value or not all(isinstance(x, Mapping) for x in value):
        raise ValueError(f"is {value!r}, expected tables like {EXAMPLE}")
    return tuple(_step(number, table) for number, table in enumerate(value, 1))


def _step(number: int, table: Mapping[str, Any]) -> JobStep:
    for key in table:
        if key not in KEYS:
            raise ValueError(f"has an unknown key {key!r} in step {number}. {did_you_mean(key, KEYS)}")
    name, command = table.get("name"), table.get("command")
    if not isinstance(name, str):
        raise ValueError(f"has no name in step {number}: every step has one, like {EXAMPLE}")
    for key in ("protect", "always"):
        if not isinstance(table.get(key, False), bool):
            raise ValueError(f"has {key} = {table[key]!r} in step {name!r}, expected true or false")
    return JobStep(name, _words(name, command), table.get("protect", name != SETUP), table.get("always", False))


def _words(name: str, command: object) -> tuple[str, ...]:
    try:
        words = shlex.split(command) if isinstance(command, str) else command
    except ValueError as e:
        raise ValueError(f"has a command in step {name!r} that can't be split into words ({e}); write a list") from None
    if isinstance(words, list) and words and all(isinstance(word, str) for word in words):
        return tuple(words)
    raise ValueError(f'has no command in step {name!r}, expected one like "prog --fast" or ["sh", "-c", "a | b"]')


def problems(steps: Sequence[JobStep], command: tuple[str, ...], *, saves_itself: bool) -> Iterator[tuple[str, str]]:
    """Everything wrong with the steps of a job: (key of the job file, second half of a sentence)."""
    if not steps:
        return
    if len(steps) > STEPS_MAX:
        yield "steps", f"are {len(steps)}, more than {STEPS_MAX}: put some into one script"
    for name, count in Counter(s.name for s in steps).items():
        if count > 1:
            yield "steps", f"has {name!r} {count} times: every step has a name of its own"
    for step in steps:
        yield from _problems(step)
    if saves_itself and MAIN not in [s.name for s in steps]:
        yield "steps", f"has no step {MAIN!r}, and that is the one which [app] tells to save itself: name one so"
    if command not in [s.command for s in steps]:
        yield "command", "stands beside [[steps]], which say what runs: keep one of the two"


def _problems(step: JobStep) -> Iterator[tuple[str, str]]:
    if not NAME.fullmatch(step.name):
        yield "steps", f"has the name {step.name!r}, expected up to 40 letters, digits, '.', '_' or '-'"
    if not step.command or not step.command[0].strip():
        yield "steps", f"has an empty command in step {step.name!r}"
    if any("\0" in word for word in step.command):
        yield "steps", f"has a zero byte in the command of step {step.name!r}"
    if sum(len(word.encode()) for word in step.command) > TEXT_MAX_BYTES:
        yield "steps", f"has a command longer than {TEXT_MAX_BYTES >> 10} KiB in step {step.name!r}: put it into an input file"
