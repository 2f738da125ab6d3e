"""What a job's specification may hold, whoever wrote it: a job file, options, or a stranger's HTTP request."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from spotsurfer.model.job import JobSpec

NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,39})")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
CPUS_MAX = 4096
MEMORY_MIN_BYTES = 16 << 20
RETRIES_MAX = 1000
INTERVAL_MIN_SECONDS = 1.0
TEXT_MAX_BYTES = 128 << 10  # of the command, the environment, the tags: each is part of small objects and of argv


def problems(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Everything wrong with `spec`: (key of the job file, second half of a sentence)."""
    yield from _texts(spec)
    yield from _paths(spec)
    yield from _numbers(spec)


def _texts(spec: JobSpec) -> Iterator[tuple[str, str]]:
    if not NAME.fullmatch(spec.name):
        yield "name", f"is {spec.name!r}, expected up to 40 letters, digits, '.', '_' or '-', beginning with a letter or digit"
    if not spec.command or not spec.command[0].strip():
        yield "command", 'is empty, expected a program and its arguments, like ["prog", "--fast"]'
    if spec.user is not None and not USER.fullmatch(spec.user):
        yield "user", f"is {spec.user!r}, expected a user name of the machine, like 'nobody'"
    for key in spec.environment:
        if not VARIABLE.fullmatch(key):
            yield f"environment.{key}", "is no name of a variable: letters, digits and '_', not beginning with a digit"
    for key, values in (
        ("command", spec.command),
        ("environment", tuple(spec.environment.values())),
        ("tags", (*spec.tags, *spec.tags.values())),
        ("on_end", spec.on_end),
    ):
        if any("\0" in v for v in values):
            yield key, "holds a zero byte"
        if sum(len(v.encode()) for v in values) > TEXT_MAX_BYTES:
            yield key, f"is longer than {TEXT_MAX_BYTES >> 10} KiB: put it into an input file"


def _paths(spec: JobSpec) -> Iterator[tuple[str, str]]:
    for key, values in (("folder", (spec.folder,)), ("outputs", spec.outputs)):
        for value in values:
            if why := leaves_folder(value):
                yield key, f"is {value!r}, which {why}: write a path relative to the job's folder"


def leaves_folder(path: str) -> str:
    """Why `path` is not a plain path below its folder, or ""."""
    if not path or "\0" in path:
        return "is no path"
    if path.startswith(("/", "~")):
        return "is absolute"
    return "leaves the job's folder" if ".." in PurePosixPath(path).parts else ""


def _numbers(spec: JobSpec) -> Iterator[tuple[str, str]]:
    if not 1 <= spec.cpus <= CPUS_MAX:
        yield "resources.cpu", f"is {spec.cpus}, expected 1 to {CPUS_MAX}"
    if spec.memory_bytes < MEMORY_MIN_BYTES:
        yield "resources.memory", f"is {spec.memory_bytes} bytes, expected at least {MEMORY_MIN_BYTES >> 20}M"
    if not 0 <= spec.retries <= RETRIES_MAX:
        yield "retries", f"is {spec.retries}, expected 0 to {RETRIES_MAX}"
    interval = spec.checkpoint_interval_seconds
    if interval is not None and interval < INTERVAL_MIN_SECONDS:
        yield "checkpoint_interval", f"is {interval:g} seconds, expected at least {INTERVAL_MIN_SECONDS:g}"
    if spec.budget_usd_micros is not None and spec.budget_usd_micros <= 0:
        yield "budget_usd", "is nothing: the job could never start"
