"""Turns job TOML, or options of the command line, into JobSpec and the list of input files; errors name file, line and key."""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from spotsurfer_wire.sealed_objects import REGISTRY_AUTH

from spotsurfer.common.input_errors import did_you_mean, line_of
from spotsurfer.common.units import parse_bytes, parse_seconds, parse_usd
from spotsurfer.jobspec.remote_inputs import read_inputs, read_mounts, split
from spotsurfer.jobspec.secrets import read
from spotsurfer.jobspec.sections import read_auth, read_licences, read_ports, read_share, read_steps
from spotsurfer.jobspec.uploads import InputFile, expand
from spotsurfer.jobspec.validate import problems
from spotsurfer.model.errors import JobFileError
from spotsurfer.model.job import NAME, PRIORITIES, JobSpec, MarketChoice, main_command

JOB_FILE_MAX_BYTES = 1 << 20
SHELL_SIGN = re.compile(r"[0-9]*[|&;<>]")  # beginnings of words that only a shell understands


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A submission: the specification and the files that go along."""

    spec: JobSpec
    inputs: list[InputFile]
    secrets: dict[str, bytes] = field(default_factory=dict, repr=False)  # values that this host reads

    @property
    def modes(self) -> dict[str, int]:
        """Permission bits of each input by its path at the destination."""
        return {f.path: f.mode for f in self.inputs}


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of values, for messages."""

    name: str  # of the file, or "The command line"
    text: str = ""

    def at(self, key: str) -> str:
        """The beginning of a sentence about `key`."""
        line = line_of(self.text, key.split(".")) if self.text else None
        return f"{self.name}{f' line {line}' if line else ''}: {key}"


# ---- Parsers, one for each kind of value; all raise ValueError


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"is {value!r}, expected a text in quotes")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
        raise ValueError(f'is {value!r}, expected a list of texts, like ["a", "b"]')
    return tuple(value)


def _command(value: object) -> tuple[str, ...]:
    if not isinstance(value, str):
        words = _texts(value)
    else:
        try:
            words = tuple(shlex.split(value))
            written = _written(value)
        except ValueError as e:
            raise ValueError(f"is {value!r}, which can't be split into words ({e}); write a list of words instead") from None
        if (sign := next((w for w in written if SHELL_SIGN.match(w)), None)) is not None:
            raise ValueError(
                f"is {value!r}, but no shell sees it, and {sign} would be an argument like any other: "
                f'write ["sh", "-c", {json.dumps(value)}] for a shell, or a list of words'
            )
    if not words:
        raise ValueError('is empty, expected a program and its arguments, like "prog --fast" or ["sh", "-c", "a | b"]')
    return words


def _written(text: str) -> list[str]:
    """The words with their quotes: quoted text is literal."""
    parts = shlex.shlex(text, posix=False)
    parts.whitespace_split, parts.commenters = True, ""
    return list(parts)


def _begin(value: object) -> str:
    """A time with a zone, or a duration after the submission; TOML has times of its own."""
    return value.isoformat() if isinstance(value, datetime) else _text(value)


def _words(value: object) -> tuple[str, ...]:
    return () if value == [] else _command(value)


def _table(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str | int | float) for v in value.values()):
        raise ValueError(f'is {value!r}, expected a table of texts, like {{ THREADS = "4" }}')
    return {str(k): v if isinstance(v, str) else str(v).lower() if isinstance(v, bool) else str(v) for k, v in value.items()}


def _parameters(value: object) -> dict[str, str | int | float | bool]:
    if not isinstance(value, dict) or not all(isinstance(v, str | int | float) for v in value.values()):
        raise ValueError(f"is {value!r}, expected a table of numbers and texts, like {{ stretch = 1.1 }}")
    return {str(k): v for k, v in value.items()}


def _secrets(value: object) -> dict[str, dict[str, str]]:
    if not isinstance(value, dict):
        raise ValueError(f'is {value!r}, expected a table, like {{ TOKEN = "env:TOKEN" }}')
    return {str(name): _secret(str(name), given) for name, given in value.items()}


def _secret(name: str, given: object) -> dict[str, str]:
    table = {"from": given} if isinstance(given, str) else given
    if not isinstance(table, dict) or not set(table) <= {"from", "as"} or not all(isinstance(x, str) for x in table.values()):
        raise ValueError(f'has {name}, which is neither like "file:PATH" nor like {{ from = "file:PATH", as = "file" }}')
    return {"from": table.get("from", ""), "as": table.get("as", "environment")}


def _switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"is {value!r}, expected true or false")
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"is {value!r}, expected a whole number")
    return value


def _market(value: object) -> MarketChoice:
    try:
        return MarketChoice(str(value))
    except ValueError:
        raise ValueError(f"is {value!r}. {did_you_mean(str(value), list(MarketChoice))}") from None


def read_priority(value: object) -> int:
    """A number, or the name of one; raises ValueError with the second half of a sentence."""
    if isinstance(value, str) and not re.fullmatch(r"[+-]?[0-9]{1,9}", value):
        if value in PRIORITIES:
            return PRIORITIES[value]
        raise ValueError(f"is {value!r}, expected {', '.join(PRIORITIES)} or a whole number")
    return _count(int(value) if isinstance(value, str) else value)


# All keys of a job file: key -> (name in JobSpec, parser).
KEYS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "name": ("name", _text),
    "command": ("command", _command),
    "folder": ("folder", _text),
    "inputs": ("inputs", read_inputs),
    "mounts": ("mounts", read_mounts),
    "outputs": ("outputs", _texts),
    "outputs_optional": ("outputs_optional", _switch),
    "environment": ("environment", _table),
    "secrets": ("secrets", _secrets),
    "secrets_in_plain_images": ("secrets_in_plain_images", _switch),
    "image": ("image", _text),
    "entry_point": ("entry_point", _words),
    "devices": ("devices", _texts),
    "registry_auth": ("registry_auth", _text),
    "tags": ("tags", _table),
    "project": ("project", _text),
    "user": ("user", _text),
    "market": ("market", _market),
    "priority": ("priority", read_priority),
    "checkpoint_interval": ("checkpoint_interval_seconds", parse_seconds),
    "retries": ("retries", _count),
    "budget_usd": ("budget_usd_micros", parse_usd),
    "price_max_usd": ("price_max_usd_micros", parse_usd),
    "deadline": ("deadline_seconds", parse_seconds),
    "work": ("work_seconds", parse_seconds),
    "home": ("home", _text),
    "home_files": ("home_files", _texts),
    "home_exclude": ("home_exclude", _texts),
    "stdout": ("stdout", _text),
    "stderr": ("stderr", _text),
    "output_append": ("output_append", _switch),
    "resources.instance_types": ("instance_types", _texts),
    "on_end": ("on_end", _command),
    "resources.cpu": ("cpus", _count),
    "resources.memory": ("memory_bytes", parse_bytes),
    "resources.out_of_memory": ("out_of_memory", _text),
    "resources.gpus": ("gpus", _count),
    "resources.gpu": ("gpu", _text),
    "resources.licences": ("licences", read_licences),
    "size.policy": ("size_policy", _text),
    "size.memory_min": ("size_memory_min_bytes", parse_bytes),
    "size.memory_max": ("size_memory_max_bytes", parse_bytes),
    "size.cpu_min": ("size_cpus_min", _count),
    "size.cpu_max": ("size_cpus_max", _count),
    "size.parameters": ("size_parameters", _parameters),
    "engine": ("engine", _text),
    "tcp": ("tcp", _text),
    "cpu": ("cpu", _text),
    "before_freeze": ("before_freeze", _command),
    "after_restore": ("after_restore", _command),
    "before_thaw": ("before_thaw", _command),
    "hook_limit": ("hook_seconds", parse_seconds),
    "app.signal": ("app_signal", _text),
    "app.command": ("app_command", _command),
    "app.file": ("app_file", _text),
    "app.deadline": ("app_deadline_seconds", parse_seconds),
    "app.done_file": ("app_done_file", _text),
    "app.done_output": ("app_done_output", _text),
    "app.done_exit": ("app_done_exit", _count),
    "app.restart_command": ("app_restart_command", _command),
    "steps": ("steps", read_steps),
    "ports": ("ports", read_ports),
    "array": ("array", _text),
    "after": ("after", _texts),
    "begin": ("begin", _begin),
    "time_limit": ("time_limit_seconds", parse_seconds),
    "warn.signal": ("warn_signal", _text),
    "warn.before": ("warn_seconds", parse_seconds),
    "stuck_after": ("stuck_seconds", parse_seconds),
    "idle.suspend_after": ("idle_seconds", parse_seconds),
    "idle.cpu": ("idle_cpu", read_share),
    "idle.gpu": ("idle_gpu", read_share),
}
OF_HOST = ("home", "stdout", "stderr")
TABLES = {  # of keys, with an example
    "resources": 'cpu = 2, memory = "4G"',
    "app": 'signal = "USR1", done_file = "state.ckpt"',
    "idle": 'suspend_after = "30m"',
    "size": 'policy = "surf"',
    "warn": 'signal = "USR1", before = "60s"',
}


def read_jobfile(path: Path, overrides: Mapping[str, object] | None = None) -> JobRequest:
    """The job that `path` describes; `overrides` (dotted keys) win over the file.

    Raises JobFileError or InputMissing: one sentence with file, line and key.
    """
    try:
        with path.open("rb") as opened:
            content = opened.read(JOB_FILE_MAX_BYTES + 1)  # a pipe or device has no known size
        if len(content) > JOB_FILE_MAX_BYTES:
            raise JobFileError(f"{path} is larger than 1 MiB: that is no job file.")
        text = content.decode()
    except FileNotFoundError:
        raise JobFileError(
            f"Job file {path} is not there: check the path, or write the job as options before `-- prog`."
        ) from None
    except UnicodeDecodeError:
        raise JobFileError(f"Job file {path} is no text (UTF-8): that is no job file.") from None
    except OSError as e:
        raise JobFileError(f"Job file {path} can't be read: {e.strerror}.") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise JobFileError(f"{path} is not valid TOML: {e}.") from None
    return make_request(_flat(table, Origin(str(path), text)), overrides or {}, path.parent, Origin(str(path), text))


def make_request(
    values: Mapping[str, object], overrides: Mapping[str, object], folder: Path, origin: Origin, default_name: str = ""
) -> JobRequest:
    """The job of flat values ("resources.cpu"); paths of inputs are relative to `folder`."""
    line = Origin("The command line")
    fields: dict[str, Any] = {}
    for source, given in ((origin, values), (line, overrides)):
        for key, value in given.items():
            field, parse = KEYS[key]
            try:
                fields[field] = parse(value)
            except ValueError as e:
                raise JobFileError(_sentence(source.at(key), str(e))) from None
    fields |= split(fields.pop("inputs", ()))
    if "steps" in fields:
        fields.setdefault("command", main_command(fields["steps"]))
    if "image" in fields:
        fields.setdefault("command", ())
    if "command" not in fields:
        raise JobFileError(
            f'{origin.name}: command is missing. Add a line like command = ["prog", "--fast"], or `-- prog` after submit.'
        )
    fields |= _on_this_host(fields, overrides, folder)
    fields.setdefault("name", default_name or _name_from(origin.name, fields["command"] or (fields["image"],)))
    spec = JobSpec(**fields)
    for key, why in problems(spec):
        raise JobFileError(_sentence((line if key in overrides else origin).at(key), why))
    where = (line if "inputs" in overrides else origin).at("inputs")
    secrets = read(spec, Path.cwd() if "secrets" in overrides else folder, (line if "secrets" in overrides else origin).at)
    if (auth := read_auth(spec, folder, origin.at)) is not None:
        secrets[REGISTRY_AUTH] = auth
    return JobRequest(spec, expand(spec.inputs, folder, where) if spec.inputs else [], secrets)


def _on_this_host(fields: Mapping[str, Any], overrides: Mapping[str, object], folder: Path) -> dict[str, str]:
    """Absolute paths of this host: those of options are relative to the current folder, others to the job file's."""
    near = {key: Path.cwd() if key in overrides else Path.cwd() / folder for key in OF_HOST if fields.get(key)}
    return {key: os.path.normpath(base / Path(fields[key]).expanduser()) for key, base in near.items()}


def _flat(table: Mapping[str, Any], origin: Origin) -> dict[str, object]:
    """Dotted keys to values; refuses unknown keys."""
    flat: dict[str, object] = {}
    for key, value in table.items():
        if key in TABLES:
            if not isinstance(value, dict):
                raise JobFileError(f"{origin.at(key)} is {value!r}, expected a table: [{key}] {TABLES[key]}.")
            flat |= {f"{key}.{k}": v for k, v in value.items()}
        else:
            flat[key] = value
    for key in flat:
        if key not in KEYS:
            raise JobFileError(f"{origin.at(key)} is an unknown key. {_meant(key)}")
    return flat


def _meant(key: str) -> str:
    """The key that an unknown one was probably meant for."""
    table, _, name = key.rpartition(".")
    if name in KEYS and table:  # in TOML, all lines after [table] belong to the table
        return f"{name!r} belongs above the first [table] of the file."
    return did_you_mean(key, KEYS)


def _name_from(origin: str, command: tuple[str, ...]) -> str:
    """A default name: the job file's, or the program's, without unsuitable letters."""
    stem = Path(origin).stem if origin.endswith(".toml") else Path(command[0]).name
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in stem).strip("._-")[:40]
    return kept if NAME.fullmatch(kept) else "job"


def _sentence(begin: str, rest: str) -> str:
    return f"{begin} {rest}" + ("" if rest.endswith((".", "?")) else ".")
