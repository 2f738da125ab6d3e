"""Frozen dataclasses to JSON objects and back: tolerant of new fields, strict about everything else, bounded.

A hostile writer can try to stop its reader. So a reader accepts only finite numbers that fit into 64 bits, text that is valid
UTF-8, and no more depth than our own objects have; everything else is a ProtocolError. Text of agents up to 0.2 may hold lone
surrogates (of a file name that is no UTF-8): the reader converts it to the form that newer agents write.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import types
import typing
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

from spotsurfer_wire.store.port import ObjectStore

PROTOCOL = 1
DEPTH_MAX = 32  # levels of objects and lists in each other
TEXT_SHOWN = 100  # of what is quoted in an error
_INTEGER_MAX = 2**63 - 1
_SURROGATES = re.compile(rb"\\u[dD][89a-fA-F]")  # json.loads makes one character of each pair, and leaves lone ones


class ProtocolError(ValueError):
    """An object that can't be read: wrong version, not JSON, a field missing or of the wrong kind."""


T = TypeVar("T")


def encode(value: Any) -> bytes:
    """One JSON object with its protocol number, keys sorted: equal values are equal bytes.

    Text from file names and programs may hold bytes that are no UTF-8 (Python's lone surrogates): these are written out as
    `\\udcf6`, which every reader takes.
    """
    return json.dumps(_clean(plain(value)), sort_keys=True).encode()


def _clean(raw: Any) -> Any:
    if isinstance(raw, str):
        return raw if raw.isascii() else raw.encode(errors="backslashreplace").decode()
    if isinstance(raw, dict):
        return {_clean(k): _clean(v) for k, v in raw.items()}
    if isinstance(raw, (list, tuple)):
        return [_clean(x) for x in raw]
    return raw


def plain(value: Any) -> dict[str, Any]:
    """What `encode` makes JSON of."""
    return {"protocol": PROTOCOL, **dataclasses.asdict(value)}


def decode(kind: type[T], data: bytes) -> T:
    """The dataclass `kind` from bytes.

    Raises ProtocolError if the version is higher than ours, a field is missing or has the wrong type, or a value is out of
    bounds.
    """
    return from_plain(kind, parse(kind.__name__, data))


def parse(what: str, data: bytes, sealed: bool = False) -> Any:
    """JSON with finite numbers that fit into 64 bits, valid text and little depth. Raises ProtocolError, which names `what`.

    Lone surrogates are written out, as `encode` does. `sealed`: the writer had the job's key. Such text may hold names of
    files that are no UTF-8 (they stay as they are), and times after 2262, which don't fit into 64 bits as nanoseconds.
    """
    try:
        raw = json.loads(data.decode(), parse_constant=_refuse, parse_float=_float, parse_int=int if sealed else _integer)
    except (ValueError, RecursionError) as e:  # UnicodeError is a ValueError
        raise ProtocolError(f"{what} is not JSON that we take: {e}") from e
    if not _shallow(raw, DEPTH_MAX):
        raise ProtocolError(f"{what} is nested more than {DEPTH_MAX} levels deep")
    return _clean(raw) if not sealed and _SURROGATES.search(data) else raw


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no number")


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:TEXT_SHOWN]} is too large")
    return value


def _integer(text: str) -> int:
    if len(text) > 20 or abs(int(text)) > _INTEGER_MAX:
        raise ValueError(f"{text[:TEXT_SHOWN]} does not fit into 64 bits")
    return int(text)


def _shallow(raw: Any, levels: int) -> bool:
    inside = raw.values() if isinstance(raw, dict) else raw if isinstance(raw, list) else ()
    return levels > 0 and all(_shallow(x, levels - 1) for x in inside if isinstance(x, (dict, list)))


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
    """The dataclass `kind` from a mapping; fields of a newer writer are ignored.

    Nothing is checked: only for what this machine's own processes write. Raises TypeError if a field is missing.
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
    return {k: _value(args[1], v, f"{where}[{k[:TEXT_SHOWN]!r}]") for k, v in raw.items()}


def _enum(kind: type[StrEnum], raw: Any, where: str) -> Any:
    try:
        return kind(raw)
    except ValueError as e:
        raise ProtocolError(f"{where} is {str(raw)[:TEXT_SHOWN]!r}, not one of {', '.join(kind)}") from e


def _scalar(kind: Any, raw: Any, where: str) -> Any:
    if kind is float and isinstance(raw, int) and not isinstance(raw, bool):
        return float(raw)
    if type(raw) is not kind:
        raise ProtocolError(f"{where} is {type(raw).__name__}, not {kind.__name__}")
    return raw


# ---- Bounded reads: of an object that is too large, no more is read than proves it
#
# A listing reports sizes, but the object may have been replaced by the time that it is read.


def read_bounded(store: ObjectStore, key: str, most: int) -> bytes | None:
    """The whole object of at most `most` bytes, or None. Raises StoreError, and ProtocolError for a larger one."""
    data = store.get_range(key, 0, most + 1)
    if data is not None and len(data) > most:
        raise ProtocolError(f"{key} has more than {most} bytes, so it is not one of ours: it is not read")
    return data
