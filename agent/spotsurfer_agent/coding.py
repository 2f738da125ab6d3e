"""Frozen dataclasses to JSON objects and back: strict writers, tolerant readers, checked types."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

PROTOCOL = 1


class ProtocolError(ValueError):
    """An object that can't be read: wrong version, not JSON, a field missing or of the wrong kind."""


T = TypeVar("T")


def encode(value: Any) -> bytes:
    """One JSON object with its protocol number, keys sorted: equal values are equal bytes."""
    return json.dumps(plain(value), sort_keys=True).encode()


def plain(value: Any) -> dict[str, Any]:
    """What `encode` makes JSON of."""
    return {"protocol": PROTOCOL, **dataclasses.asdict(value)}


def decode(kind: type[T], data: bytes) -> T:
    """The dataclass `kind` from bytes.

    Raises ProtocolError where the version is higher than ours, a field is missing or has the wrong type.
    """
    try:
        raw = json.loads(data)
    except ValueError as e:
        raise ProtocolError(f"{kind.__name__} is not JSON: {e}") from e
    return from_plain(kind, raw)


def from_plain(kind: type[T], raw: Any) -> T:
    """The dataclass `kind` from what JSON held; a class with a method `from_wire` reads its own form. Raises ProtocolError."""
    if not isinstance(raw, dict) or not isinstance(raw.get("protocol"), int):
        raise ProtocolError(f"{kind.__name__} has no protocol number")
    if raw["protocol"] > PROTOCOL:
        raise ProtocolError(
            f"{kind.__name__} speaks protocol {raw['protocol']}, this version only {PROTOCOL}: upgrade spotsurfer here"
        )
    return typing.cast(T, _value(kind, raw, kind.__name__))


def known(kind: type[T], raw: Mapping[str, Any]) -> T:
    """The dataclass `kind` from what is said of its fields; whatever else there is, of a newer writer, is passed over.

    Nothing is checked: for what this machine's own processes write. Raises TypeError where a field is missing.
    """
    names = {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in raw.items() if name in names})


def _value(kind: Any, raw: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, raw, where)
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        inner = [a for a in typing.get_args(kind) if a is not type(None)]
        return None if raw is None else _value(inner[0], raw, where)
    if origin in (list, dict):
        return _container(kind, origin, raw, where)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return _enum(kind, raw, where)
    if hasattr(kind, "from_wire"):
        return kind.from_wire(raw)
    return _scalar(kind, raw, where)


_hints = functools.cache(typing.get_type_hints)  # evaluating them again and again took most of the time


def _dataclass(kind: Any, raw: Any, where: str) -> Any:
    if not isinstance(raw, dict):
        raise ProtocolError(f"{where} is not an object")
    hints, out = _hints(kind), {}
    for f in dataclasses.fields(kind):
        if f.name in raw:
            out[f.name] = _value(hints[f.name], raw[f.name], f"{where}.{f.name}")
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ProtocolError(f"{where}.{f.name} is missing")
    return kind(**out)


def _container(kind: Any, origin: Any, raw: Any, where: str) -> Any:
    if not isinstance(raw, origin):
        raise ProtocolError(f"{where} is not a {origin.__name__}")
    args = typing.get_args(kind)
    if origin is list:
        return [_value(args[0], x, f"{where}[{i}]") for i, x in enumerate(raw)]
    return {k: _value(args[1], v, f"{where}[{k!r}]") for k, v in raw.items()}


def _enum(kind: type[StrEnum], raw: Any, where: str) -> Any:
    try:
        return kind(raw)
    except ValueError as e:
        raise ProtocolError(f"{where} is {raw!r}, not one of {', '.join(kind)}") from e


def _scalar(kind: Any, raw: Any, where: str) -> Any:
    if kind is float and isinstance(raw, int) and not isinstance(raw, bool):
        return float(raw)
    if type(raw) is not kind:
        raise ProtocolError(f"{where} is {type(raw).__name__}, not {kind.__name__}")
    return raw
