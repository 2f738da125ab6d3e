"""Tables from TOML into dataclasses: for unknown keys, missing keys and wrong types, one sentence names the key."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

from spotsurfer.model.errors import ConfigError

T = TypeVar("T")


def build(kind: type[T], table: object, where: str) -> T:
    """`kind` from a table. Raises ConfigError."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} must be a table")
    fields = {f.name: f for f in dataclasses.fields(typing.cast(Any, kind))}
    for key in table:
        if key not in fields:
            raise ConfigError(f"{where} has an unknown key {key!r}; it knows {', '.join(fields)}")
    hints = typing.get_type_hints(kind)
    given = {k: _value(hints[k], v, f"{where}.{k}") for k, v in table.items()}
    for name, f in fields.items():
        if name not in given and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{where} needs {name}")
    return kind(**given)


def _value(hint: Any, value: object, where: str) -> Any:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for kind in kinds:
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if isinstance(kind, type) and issubclass(kind, StrEnum) and value in set(kind):
            return kind(str(value))
        if type(value) is (typing.get_origin(kind) or kind):
            return value
    raise ConfigError(f"{where} is {value!r}; it must be {_say(kinds)}")


def _say(kinds: tuple[Any, ...]) -> str:
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    said = []
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, StrEnum):
            said += [repr(str(x)) for x in kind]
        elif kind is not type(None):
            said.append(names.get(kind, str(kind)))
    return " or ".join(said)
