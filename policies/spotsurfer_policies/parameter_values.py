"""The parameters of a policy as values, checked in the same way for every policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from spotsurfer.ports.policies import Parameter

_TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list"}


def values(policy: str, settings: Mapping[str, object], known: Sequence[Parameter] = ()) -> dict[str, Any]:
    """The value of every known parameter: as set, in the type of its default, or else the default.

    `policy` is for the message, like "size.surf". Raises ValueError for an unknown name or a value of another type.
    """
    found = {p.name: p.default for p in known}
    if unknown := ", ".join(sorted(set(settings) - set(found))):
        there = f"there are {', '.join(found)}" if found else "it has no parameters"
        raise ValueError(f"{policy}: it has no {unknown}; {there}")
    for name, value in settings.items():
        kind = type(found[name])
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
            raise ValueError(f"{policy}: {name} must be {_TYPES[kind]}, not {value!r}")
        found[name] = value
    return found
