"""Scenarios from TOML files, with the traces they name.

[[price]]     factor = 1.5, pool = "*/m6i.*", market = "spot", from_seconds = 60, to_seconds = 300
[[outage]]    market = "spot", at_reclaim = 2, seconds = 90
[[reclaim]]   launch = 1, after_seconds = 60, notice_seconds = 120, rebalance_seconds_before = 30
[[capacity]]  pool = "local-a/*", instances = 2
[trace]       path = "availability.csv.gz", seconds_per_tick = 5.0, start_tick = 137
[trace.columns]
"us-east-1a_v100_1" = "local-a/*"
"""

from __future__ import annotations

import csv
import gzip
import io
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from spotsurfer.model.errors import ConfigError
from spotsurfer_providers.local.scenario import Capacity, Outage, Price, Reclaim, Scenario, Trace
from spotsurfer_providers.local.strict import build

T = TypeVar("T")
_TABLES = ("price", "outage", "reclaim", "capacity", "trace")


@dataclass(frozen=True, slots=True)
class _TraceTable:
    path: str
    columns: dict[str, str]
    seconds_per_tick: float = 195.0  # here; the recording's own tick divided by this is the speed-up
    start_tick: int | None = None
    tick_column: str = "tick"


def load(path: Path | None) -> Scenario:
    """The scenario in a file, or the empty one. Raises ConfigError, naming file and key."""
    if path is None:
        return Scenario()
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise ConfigError(f"The scenario {path} can't be read: {e.strerror}") from e
    except ValueError as e:
        raise ConfigError(f"The scenario {path} is not TOML: {e}") from e
    return parse(raw, path)


def parse(raw: Mapping[str, object], path: Path) -> Scenario:
    """A scenario from its tables; `path` is where they came from. Raises ConfigError."""
    for key in raw:
        if key not in _TABLES:
            raise ConfigError(f"{path} has an unknown table {key!r}; it knows {', '.join(_TABLES)}")
    reclaims = _list(Reclaim, raw, "reclaim", path)
    for r in reclaims:
        if (r.at_seconds is None) == (r.after_seconds is None):
            raise ConfigError(f"{path}: a reclaim needs either at_seconds or after_seconds")
    return Scenario(
        prices=_list(Price, raw, "price", path),
        outages=_list(Outage, raw, "outage", path),
        reclaims=reclaims,
        capacities=_list(Capacity, raw, "capacity", path),
        trace=_trace(raw["trace"], path) if "trace" in raw else None,
    )


def _list(kind: type[T], raw: Mapping[str, object], name: str, path: Path) -> list[T]:
    tables = raw.get(name, [])
    if not isinstance(tables, list):
        raise ConfigError(f"{path}: write [[{name}]], with two brackets")
    return [build(kind, t, f"{path}: {name} {i}") for i, t in enumerate(tables, 1)]


def _trace(table: object, path: Path) -> Trace:
    if not isinstance(table, Mapping) or not isinstance(table.get("columns"), Mapping):
        raise ConfigError(f"{path}: trace needs a table trace.columns, from column names to pools")
    columns = {str(k): str(v) for k, v in table["columns"].items()}
    plain = build(_TraceTable, {**table, "columns": columns}, f"{path}: trace")
    rows = _rows(path.parent / plain.path)
    if plain.start_tick is not None:
        rows = [r for r in rows if int(r[plain.tick_column]) >= plain.start_tick]
    if not rows:
        raise ConfigError(f"{path}: the trace has no ticks from start_tick on")
    for column in columns:
        if column not in rows[0]:
            raise ConfigError(f"{path}: the trace has no column {column!r}; it has {', '.join(rows[0])}")
    if plain.seconds_per_tick <= 0:
        raise ConfigError(f"{path}: trace.seconds_per_tick must be more than 0")
    return Trace({pool: [row[column] == "1" for row in rows] for column, pool in columns.items()}, plain.seconds_per_tick)


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    except (OSError, UnicodeDecodeError, EOFError) as e:
        raise ConfigError(f"The trace {path} can't be read: {e}") from e
    return list(csv.DictReader(io.StringIO(text)))
