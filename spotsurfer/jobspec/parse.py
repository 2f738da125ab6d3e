"""Turns job TOML, or options of the command line, into JobSpec and the list of input files; errors name file, line and key."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotsurfer_wire.sealed_objects import REGISTRY_AUTH

from spotsurfer.common.input_errors import did_you_mean, line_of
from spotsurfer.jobspec.keys import KEYS, TABLES
from spotsurfer.jobspec.remote_inputs import split
from spotsurfer.jobspec.secrets import read
from spotsurfer.jobspec.sections import read_auth
from spotsurfer.jobspec.uploads import InputFile, expand
from spotsurfer.jobspec.validate import problems
from spotsurfer.model.errors import JobFileError
from spotsurfer.model.job import NAME, JobSpec, main_command

JOB_FILE_MAX_BYTES = 1 << 20


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


OF_HOST = ("home", "stdout", "stderr")


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
            known = KEYS[key]
            try:
                fields[known.field] = known.parse(value)
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
