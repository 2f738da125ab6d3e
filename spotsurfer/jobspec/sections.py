"""Sections of a job file (ports, idle, steps, container image): from TOML to values, and the checks of each."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from spotsurfer_wire.container_image import Reference

from spotsurfer.common.input_errors import did_you_mean
from spotsurfer.jobspec.secrets import read_one
from spotsurfer.model.errors import InputMissing, JobFileError
from spotsurfer.model.job import MAIN, NAME, NAME_LETTERS, SENT_SECRETS, SETUP, JobPort, JobSpec, JobStep
from spotsurfer.model.licences import KIND, KIND_LETTERS

# ---- Tables and lists; every function that reads TOML raises ValueError with the second half of a sentence.


def known_keys(table: Mapping[str, Any], known: Sequence[str], where: str = "") -> None:
    """Raises ValueError for a key that is not among the known ones."""
    for key in table:
        if key not in known:
            raise ValueError(f"has an unknown key {key!r}{where}. {did_you_mean(str(key), known)}")


def switches(table: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    """Raises ValueError for one of the keys with a value that is neither true nor false."""
    for key in keys:
        if not isinstance(table.get(key, False), bool):
            raise ValueError(f"has {key} = {table[key]!r} {where}, expected true or false")


def repeated(key: str, what: str, values: Iterable[object]) -> Iterator[tuple[str, str]]:
    """A problem for each value that is there more than once."""
    for value, count in Counter(values).items():
        if count > 1:
            yield key, f"has the {what} {value!r} {count} times: each needs its own"


# ---- `ports`, `licences` and `[idle]`

PORTS_MAX = 16
LICENCES_MAX = 20
IDLE_MIN_SECONDS = 10.0
STUCK_MIN_SECONDS = 30.0  # programs that wait so long for an answer are usual
PORTS_EXAMPLE = 'ports = [8888], or [[ports]] with name = "notebook", port = 8888'


def read_ports(value: object) -> tuple[JobPort, ...]:
    """Numbers and tables; a port without a name takes its number as name."""
    entries = value if isinstance(value, list) else [value]
    return tuple(_port(entry) for entry in entries)


def _port(entry: object) -> JobPort:
    table = entry if isinstance(entry, Mapping) else {"port": entry}
    known_keys(table, ("name", "port"))
    port, name = table.get("port"), table.get("name", str(table.get("port")))
    if isinstance(port, bool) or not isinstance(port, int) or not isinstance(name, str):
        raise ValueError(f"has the entry {entry!r}, expected something like {PORTS_EXAMPLE}")
    return JobPort(name, port)


def read_licences(value: object) -> dict[str, int]:
    """How many of each kind: a table, or texts like "vcs=2"; "vcs" is one."""
    entries = dict(value) if isinstance(value, Mapping) else {}
    for word in value if isinstance(value, list) else [value] if isinstance(value, str) else ():
        kind, equals, count = str(word).partition("=")
        entries[kind] = int(count) if equals and count.isdecimal() else 1 if not equals else count
    if any(isinstance(n, bool) or not isinstance(n, int) for n in entries.values()) or not (entries or value == {}):
        raise ValueError(f"is {value!r}, expected a table of whole numbers, like {{ vcs = 1 }}")
    return {str(kind): n for kind, n in entries.items()}


def licence_problems(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Everything wrong with licences: (key of the job file, second half of a sentence)."""
    if len(spec.licences) > LICENCES_MAX:
        yield "resources.licences", f"are of {len(spec.licences)} kinds, more than {LICENCES_MAX}"
    for kind, n in spec.licences.items():
        if not KIND.fullmatch(kind):
            yield "resources.licences", f"has the name {kind!r}, expected {KIND_LETTERS}"
        if n < 1:
            yield "resources.licences", f"has {kind} = {n}, expected at least 1"


def read_share(value: object) -> float:
    """A share, as a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"is {value!r}, expected a number like 0.05")
    return float(value)


def port_problems(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Everything wrong with ports: (key of the job file, second half of a sentence)."""
    if len(spec.ports) > PORTS_MAX:
        yield "ports", f"are {len(spec.ports)}, more than {PORTS_MAX}"
    for p in spec.ports:
        if not NAME.fullmatch(p.name):
            yield "ports", f"has the name {p.name!r}, expected {NAME_LETTERS}"
        if not 1 <= p.port <= 65535:
            yield "ports", f"has {p.port}, expected 1 to 65535"
    yield from repeated("ports", "name", (p.name for p in spec.ports))
    yield from repeated("ports", "port", (p.port for p in spec.ports))


def quiet_problems(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Everything wrong with the times without work or progress, likewise."""
    if spec.stuck_seconds is not None and not spec.stuck_seconds >= STUCK_MIN_SECONDS:
        yield "stuck_after", f"is {spec.stuck_seconds:g} seconds, expected at least {STUCK_MIN_SECONDS:g}"
    time = spec.idle_seconds
    if time is not None and not time >= IDLE_MIN_SECONDS:
        yield "idle.suspend_after", f"is {time:g} seconds, expected at least {IDLE_MIN_SECONDS:g}"
    if time is not None and spec.engine == "none":
        yield "idle.suspend_after", 'can\'t be kept with engine = "none": such a job would start over'
    if time is not None and spec.deadline_seconds is not None:
        yield "idle.suspend_after", "and a deadline exclude each other: a job that sleeps does not get done"
    for key, value, most in (("idle.cpu", spec.idle_cpu, float("inf")), ("idle.gpu", spec.idle_gpu, 1.0)):
        if not 0 < value <= most:
            yield key, f"is {value:g}, expected more than 0" + (" and at most 1" if most == 1.0 else "")


# ---- `[[steps]]`

STEPS_MAX = 50
TEXT_MAX_BYTES = 128 << 10  # of one command
STEPS_EXAMPLE = '[[steps]] name = "setup", command = "…"'


def read_steps(value: object) -> tuple[JobStep, ...]:
    """The steps of a job file."""
    if not isinstance(value, list) or not value or not all(isinstance(x, Mapping) for x in value):
        raise ValueError(f"is {value!r}, expected tables like {STEPS_EXAMPLE}")
    return tuple(_step(number, table) for number, table in enumerate(value, 1))


def _step(number: int, table: Mapping[str, Any]) -> JobStep:
    known_keys(table, ("name", "command", "protect", "always"), f" in step {number}")
    name, command = table.get("name"), table.get("command")
    if not isinstance(name, str):
        raise ValueError(f"has no name in step {number}: every step has one, like {STEPS_EXAMPLE}")
    switches(table, ("protect", "always"), f"in step {name!r}")
    try:
        words = shlex.split(command) if isinstance(command, str) else command
    except ValueError as e:
        raise ValueError(f"has a command in step {name!r} that can't be split into words ({e}); write a list") from None
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise ValueError(f'has no command in step {name!r}, expected one like "prog --fast" or ["sh", "-c", "a | b"]')
    return JobStep(name, tuple(words), table.get("protect", name != SETUP), table.get("always", False))


def step_problems(steps: Sequence[JobStep], command: tuple[str, ...], *, saves_itself: bool) -> Iterator[tuple[str, str]]:
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
        yield "steps", f"has the name {step.name!r}, expected {NAME_LETTERS}"
    if not step.command or not step.command[0].strip():
        yield "steps", f"has an empty command in step {step.name!r}"
    if any("\0" in word for word in step.command):
        yield "steps", f"has a zero byte in the command of step {step.name!r}"
    if sum(len(word.encode()) for word in step.command) > TEXT_MAX_BYTES:
        room = f"{TEXT_MAX_BYTES >> 10} KiB in step {step.name!r}"
        yield "steps", f"has a command longer than {room}: put it into an input file"


# ---- Container image, and the credentials for its registry

DEVICE = re.compile(r"[A-Za-z0-9.-]+/[A-Za-z0-9_.-]+=[A-Za-z0-9_.:-]+")
Say = Callable[[str], str]  # the beginning of a sentence about a key


def image_problems(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Everything wrong with the image: (key of the job file, second half of a sentence)."""
    if not spec.image:
        given = {"entry_point": spec.entry_point is not None, "registry_auth": spec.registry_auth, "devices": spec.devices}
        for key, value in given.items():
            if value:
                yield key, 'speaks of a container image, but the job has none: add image = "docker://…"'
        return
    try:
        Reference.parse(spec.image)
    except ValueError as e:
        yield "image", str(e)
    for device in spec.devices:
        if not DEVICE.fullmatch(device):
            yield "devices", f"has {device!r}, expected a name like 'nvidia.com/gpu=all'"
    kind, _, place = spec.registry_auth.partition(":")
    if spec.registry_auth and (kind not in SENT_SECRETS or not place):
        yield "registry_auth", f"is {spec.registry_auth!r}, expected file:PATH or env:NAME"


def read_auth(spec: JobSpec, folder: Path, at: Say) -> bytes | None:
    """The credentials that the job names, read on the submitting host; None if it names none.

    Raises InputMissing for an absent file, JobFileError for one that is no containers-auth.json.
    """
    if not spec.registry_auth:
        return None
    try:
        value = read_one(spec.registry_auth, folder)
    except LookupError as e:
        raise InputMissing(f"{at('registry_auth')} {e.args[0]}.") from None
    if not usable(value):
        raise JobFileError(
            f'{at("registry_auth")} is no containers-auth.json, expected {{"auths": {{"host": {{"auth": "…"}}}}}}: '
            "`skopeo login --authfile auth.json HOST` writes one."
        )
    return value


def usable(value: bytes) -> bool:
    """Whether this is a containers-auth.json that holds its credentials itself, not in a helper of another machine."""
    try:
        hosts = json.loads(value)["auths"]
        return bool(hosts) and all(isinstance(x, dict) and x.get("auth") for x in hosts.values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


# ---- The working folder of the submit host

# Folders of each machine that hold its programs or its kernel's: a job can't do without them.
OF_MACHINE = ("bin", "boot", "dev", "etc", "lib", "lib64", "proc", "run", "sbin", "sys", "usr")
DIGEST = re.compile(r"[0-9a-f]{64}")


def home_problems(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """What is wrong with the folder that it works in, and with the files of its output."""
    for key, path in (("home", spec.home), ("stdout", spec.stdout), ("stderr", spec.stderr)):
        if path and (not path.startswith("/") or "\0" in path or os.path.normpath(path) != path or path.startswith("//")):
            yield key, f"is {path!r}, expected an absolute path without '..'"
    parts = PurePosixPath(spec.home).parts
    if spec.home and (len(parts) < 3 or parts[1] in OF_MACHINE or parts[1:3] == ("var", "lib")):
        where = "a folder of your own, like ~/project or /data/project"
        yield "home", f"is {spec.home!r}, where machines have files of their own: work in {where}"
    if not spec.home and (spec.home_files or spec.home_exclude or spec.home_tree):
        yield "home_files", "and home_exclude name parts of a folder: say which one in home"
    if spec.home_tree and not DIGEST.fullmatch(spec.home_tree):
        yield "home_tree", "is no SHA-256: clients set it"
