"""Values of a job's secrets: reads those on the submitting host, and checks all of them.

No message here holds a value, nor a part of one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from spotsurfer.model.errors import InputMissing, JobFileError
from spotsurfer.model.job import SENT_SECRETS, JobSpec

BYTES_MAX = 1 << 20  # of all together: they travel in one object, and their files lie in memory
VARIABLE_BYTES_MAX = 96 << 10  # the kernel's limit for one word
Say = Callable[[str], str]  # the beginning of a sentence about a key


def read(spec: JobSpec, folder: Path, at: Say) -> dict[str, bytes]:
    """Values of the secrets from files here (relative to `folder`) or variables of this process.

    Raises InputMissing for an absent one, JobFileError for an unusable value.
    """
    values: dict[str, bytes] = {}
    for name, secret in spec.secrets.items():
        if secret["from"].partition(":")[0] in SENT_SECRETS:
            try:
                values[name] = fitting(secret["as"], read_one(secret["from"], folder))
            except LookupError as e:
                raise InputMissing(f"{at(f'secrets.{name}')} {e.args[0]}.") from None
    for name, why in wrong(spec, values):
        raise JobFileError(f"{at(f'secrets.{name}')} {why}.")
    return values


def read_one(origin: str, folder: Path) -> bytes:
    """The value of "file:PATH" (relative to `folder`) or "env:NAME" here. Raises LookupError with half a sentence."""
    kind, _, place = origin.partition(":")
    return _file(folder, place) if kind == "file" else _variable(place)


def fitting(form: str, value: bytes) -> bytes:
    """The value in its form: a variable loses the line end that files have by habit; a file stays as it is."""
    return value.removesuffix(b"\n").removesuffix(b"\r") if form == "environment" else value


def wrong(spec: JobSpec, values: Mapping[str, bytes]) -> Iterator[tuple[str, str]]:
    """Unusable values: (name, second half of a sentence)."""
    for name, value in values.items():
        form = spec.secrets.get(name, {}).get("as")
        if form == "environment" and b"\0" in value:
            yield name, 'holds a zero byte, which no variable can: say as = "file"'
        if form == "environment" and len(value) > VARIABLE_BYTES_MAX:
            yield name, f'is longer than {VARIABLE_BYTES_MAX >> 10} KiB, too much for a variable: say as = "file"'
        if form == "environment" and not value:
            yield name, "is empty: a secret that is not there is found late otherwise"
    if sum(map(len, values.values())) > BYTES_MAX:
        yield max(values, key=lambda name: len(values[name])), "makes the secrets longer than 1 MiB: encrypt an input instead"


def _file(folder: Path, place: str) -> bytes:
    path = folder / place
    try:
        path = folder / Path(place).expanduser()
        with path.open("rb") as opened:
            value = opened.read(BYTES_MAX + 1)  # a pipe or device has no known size
    except (OSError, RuntimeError) as e:
        why = e.strerror if isinstance(e, OSError) else "no such user"
        raise LookupError(f"names {path}, which can't be read ({why}): check the path and its rights") from None
    if len(value) > BYTES_MAX:
        raise LookupError(f"names {path}, which is larger than 1 MiB: that is no secret but an input")
    return value


def _variable(place: str) -> bytes:
    value = os.environb.get(place.encode())
    if value is None:
        raise LookupError(f"names the variable {place}, which is not set here: export it, or use file:PATH")
    return value
