"""Types of machines that a back-test may choose from: those of an installed catalogue, at prices of a past date."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from spotsurfer.model.errors import UsageError
from spotsurfer.plugins import CATALOGS, plugin
from spotsurfer.ports.size import Kind

MICROS = 1e6
MAX_FACTOR = 4.0  # of cores and of memory, of what was asked for


def kinds_like(catalog: str, patterns: Sequence[str], spot: bool = False) -> tuple[Kind, ...]:
    """Types whose names fit one of the patterns; each must fit some. Raises UsageError, ConfigError."""
    types: Mapping[str, Any] = plugin(CATALOGS, catalog)()
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in types):
            raise UsageError(f"--types: no type of {catalog} is like {pattern!r}. Write it like 'c6i.*' or m6i.2xlarge.")
    return tuple(_kind(t, spot) for name, t in types.items() if any(fnmatchcase(name, p) for p in patterns))


def allowed(kinds: Sequence[Kind], request: str, cpu_factor: float, memory_factor: float) -> tuple[tuple[Kind, ...], int]:
    """Types not larger than so many times the one asked for, and that one's index. Raises UsageError where it is not there."""
    asked = next((k for k in kinds if k.name == request), None)
    if asked is None:
        raise UsageError(f"--request {request} is not among the types of --types: add it there.")
    left = [k for k in kinds if k.cores <= cpu_factor * asked.cores and k.memory_bytes <= memory_factor * asked.memory_bytes]
    if asked not in left:
        raise UsageError("--max-cpu-factor and --max-memory-factor must be at least 1, or the type asked for is too large.")
    return tuple(left), left.index(asked)


def _kind(given: Any, spot: bool) -> Kind:
    micros = given.spot_usd_micros_per_hour if spot else given.on_demand_usd_micros_per_hour
    return Kind(given.name, given.name.partition(".")[0], given.cpus, given.memory_bytes, micros / MICROS)
