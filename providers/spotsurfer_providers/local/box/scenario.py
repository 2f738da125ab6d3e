"""Scenarios of the simulated cloud: a pure function of a scenario and the time since its beginning, and the TOML files.

Times are seconds since the scenario's epoch (one for each data folder) unless noted otherwise. Patterns match a pool as
"zone/instance-type" with shell wildcards. The event of a reclaim is its *notice*: the box is taken `notice_seconds` later,
and anything that begins "with the n-th reclaim" begins with that notice.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

from spotsurfer.model.errors import ConfigError
from spotsurfer.model.market import Market, Pool
from spotsurfer_providers.toml_tables import build


@dataclass(frozen=True, slots=True)
class Price:
    """Prices of some pools are multiplied for a while."""

    factor: float
    pool: str = "*"
    market: Market | None = Market.SPOT
    from_seconds: float = 0.0
    to_seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class Outage:
    """Nothing can be launched for a while: from a time on, or for `seconds` from the n-th reclaim (1 = the first)."""

    pool: str = "*"
    market: Market | None = Market.SPOT
    from_seconds: float = 0.0
    to_seconds: float = math.inf
    at_reclaim: int | None = None
    seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Spot boxes are taken at a time, or at an age; all that match, or only the n-th spot launch (1 = the first).

    `notice_seconds` 0 = no notice; None = the provider's setting.
    """

    at_seconds: float | None = None
    after_seconds: float | None = None
    launch: int | None = None
    pool: str = "*"
    notice_seconds: float | None = None
    rebalance_seconds_before: float | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """At most so many boxes at once in all pools that match."""

    instances: int
    pool: str = "*"
    market: Market | None = Market.SPOT


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded availability: one row for each pool pattern, one value for each tick; the last value holds for ever."""

    available: Mapping[str, Sequence[bool]]
    seconds_per_tick: float

    def row(self, pool: Pool) -> Sequence[bool] | None:
        """The values of a pool, or None if the trace has none for it."""
        return next((values for pattern, values in self.available.items() if _matches(pattern, pool)), None)

    def at(self, values: Sequence[bool], seconds: float) -> bool:
        """The value at a time."""
        return values[min(len(values) - 1, max(0, int(seconds / self.seconds_per_tick)))]

    def gone_after(self, values: Sequence[bool], seconds: float) -> float | None:
        """The first time from `seconds` on at which the pool is not available."""
        for tick in range(max(0, int(seconds / self.seconds_per_tick)), len(values)):
            if not values[tick]:
                return max(seconds, tick * self.seconds_per_tick)
        return None


@dataclass(frozen=True, slots=True)
class Scenario:
    """All scripted events. The empty scenario: constant prices, endless capacity, no reclaims."""

    prices: Sequence[Price] = field(default_factory=tuple)
    outages: Sequence[Outage] = field(default_factory=tuple)
    reclaims: Sequence[Reclaim] = field(default_factory=tuple)
    capacities: Sequence[Capacity] = field(default_factory=tuple)
    trace: Trace | None = None


@dataclass(frozen=True, slots=True)
class BoxFacts:
    """The inputs of a box's fate. `spot_launch` counts spot launches of the data folder from 1; None = not spot."""

    pool: Pool
    market: Market
    launched_seconds: float
    spot_launch: int | None


@dataclass(frozen=True, slots=True)
class Fate:
    """When a box is advised to move (or None), warned, and taken; `gone == notice` means without a notice."""

    rebalance_seconds: float | None
    notice_seconds: float
    gone_seconds: float


def price_factor(scenario: Scenario, pool: Pool, market: Market, at: float) -> float:
    """The factor on a pool's price at a time."""
    factors = [
        p.factor
        for p in scenario.prices
        if _matches(p.pool, pool) and p.market in (None, market) and p.from_seconds <= at < p.to_seconds
    ]
    return math.prod(factors)


def refusal(scenario: Scenario, pool: Pool, market: Market, at: float, reclaims: Sequence[float]) -> str | None:
    """The reason why nothing can be launched in a pool at a time, or None. `reclaims`: times of the reclaims so far."""
    for outage in scenario.outages:
        if _matches(outage.pool, pool) and outage.market in (None, market) and _in_outage(outage, at, reclaims):
            return "the scenario has an outage"
    if scenario.trace is not None and market is Market.SPOT:
        values = scenario.trace.row(pool)
        if values is not None and not scenario.trace.at(values, at):
            return "the trace has no spot capacity now"
    return None


def _in_outage(outage: Outage, at: float, reclaims: Sequence[float]) -> bool:
    if outage.at_reclaim is None:
        return outage.from_seconds <= at < outage.to_seconds
    if len(reclaims) < outage.at_reclaim:
        return False
    begin = sorted(reclaims)[outage.at_reclaim - 1]
    return begin <= at < begin + outage.seconds


def full(scenario: Scenario, pool: Pool, market: Market, live: Sequence[tuple[Pool, Market]]) -> str | None:
    """The reason why a pool has no room beside the living boxes, or None."""
    for capacity in scenario.capacities:
        if not _matches(capacity.pool, pool) or capacity.market not in (None, market):
            continue
        used = sum(1 for p, m in live if _matches(capacity.pool, p) and capacity.market in (None, m))
        if used >= capacity.instances:
            return f"the scenario has room for {capacity.instances} in {capacity.pool}"
    return None


def fate(scenario: Scenario, box: BoxFacts, notice_default_seconds: float) -> Fate | None:
    """The first reclaim that hits a box, or None. Never before its launch."""
    if box.market is not Market.SPOT:
        return None
    found = [f for r in scenario.reclaims if (f := _scripted(r, box, notice_default_seconds)) is not None]
    if scenario.trace is not None and (values := scenario.trace.row(box.pool)) is not None:
        at = scenario.trace.gone_after(values, box.launched_seconds)
        found += [] if at is None else [Fate(None, at, at + notice_default_seconds)]
    return min(found, key=lambda f: f.gone_seconds, default=None)


def _scripted(reclaim: Reclaim, box: BoxFacts, notice_default_seconds: float) -> Fate | None:
    if not _matches(reclaim.pool, box.pool) or reclaim.launch not in (None, box.spot_launch):
        return None
    at = reclaim.at_seconds if reclaim.after_seconds is None else box.launched_seconds + reclaim.after_seconds
    if at is None or at < box.launched_seconds:
        return None
    notice = notice_default_seconds if reclaim.notice_seconds is None else reclaim.notice_seconds
    before = reclaim.rebalance_seconds_before
    return Fate(None if before is None else max(box.launched_seconds, at - before), at, at + notice)


def _matches(pattern: str, pool: Pool) -> bool:
    return fnmatchcase(f"{pool.zone}/{pool.instance_type}", pattern)


# ---- Files: scenarios in TOML, with the traces they name.
#
# [[price]]     factor = 1.5, pool = "*/m6i.*", market = "spot", from_seconds = 60, to_seconds = 300
# [[outage]]    market = "spot", at_reclaim = 2, seconds = 90
# [[reclaim]]   launch = 1, after_seconds = 60, notice_seconds = 120, rebalance_seconds_before = 30
# [[capacity]]  pool = "local-a/*", instances = 2
# [trace]       path = "availability.csv.gz", seconds_per_tick = 5.0, start_tick = 137
# [trace.columns]
# "us-east-1a_v100_1" = "local-a/*"

T = TypeVar("T")
_TABLES = ("price", "outage", "reclaim", "capacity", "trace")


@dataclass(frozen=True, slots=True)
class _TraceTable:
    path: str
    columns: dict[str, str]
    seconds_per_tick: float = 195.0  # in the scenario; the recording's own tick divided by this is the speed-up
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
    """A scenario from its tables; `path` is their source. Raises ConfigError."""
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
