"""Inputs of back-tests: recorded availability, prices and usage, a controller's own history, made-up markets."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from spotsurfer.core.scheduling.deadline_simulation import Bools
from spotsurfer.core.scheduling.rightsizing import Usage
from spotsurfer.model.errors import InputMissing
from spotsurfer.ports.policies import Floats

# ---- Availability: files by tick and pool, and the windows to play.

TRACE_MAX_BYTES = 1 << 30
Records = dict[str, npt.NDArray[np.int8]]  # by pool, a value for each tick: 1 available, 0 not, -1 unknown


@dataclass(frozen=True, slots=True)
class Trace:
    """`up[tick, pool]`: spot is available. Ticks follow each other without a gap; the first has number `first`."""

    pools: tuple[str, ...]
    first: int
    up: npt.NDArray[np.bool_]

    def windows(self, starts: list[int], ticks: int) -> list[int]:
        """Those starts, as rows of `up`, whose window of so many ticks lies within the trace."""
        return [s - self.first for s in starts if 0 <= s - self.first <= len(self.up) - ticks]


def read_trace(path: Path) -> Trace:
    """A CSV file, also with gzip: a column `tick`, then one column a pool, 1 = available, 0 = not. Raises InputMissing."""
    rows = read_rows(path)
    header = rows[0] if rows else []
    if len(header) < 2 or header[0] != "tick":
        raise InputMissing(f"{path}: the first line is not like tick,POOL,POOL…: a column `tick`, then one a pool.")
    if len(set(header)) != len(header):
        raise InputMissing(f"{path}: two columns have the same name.")
    for line, row in enumerate(rows[1:], 2):
        if len(row) != len(header) or any(x not in ("0", "1") for x in row[1:]) or not row[0].isdigit():
            raise InputMissing(f"{path} line {line}: expected a tick and {len(header) - 1} times 1 (available) or 0.")
    ticks = np.array([int(row[0]) for row in rows[1:]], dtype=np.int64)
    if len(ticks) == 0 or (np.diff(ticks) != 1).any():
        raise InputMissing(f"{path}: ticks must follow each other without a gap.")
    up = np.array([[x == "1" for x in row[1:]] for row in rows[1:]], dtype=np.bool_)
    return Trace(tuple(header[1:]), int(ticks[0]), up)


def records_of(trace: Trace) -> Records:
    """The trace as records for training."""
    return {pool: trace.up[:, i].astype(np.int8) for i, pool in enumerate(trace.pools)}


def read_windows(path: Path) -> list[int]:
    """The column `start_tick` of a CSV file. Raises InputMissing."""
    rows = read_rows(path)
    if not rows or "start_tick" not in rows[0]:
        raise InputMissing(f"{path}: there is no column `start_tick`.")
    at = rows[0].index("start_tick")
    try:
        return [int(row[at]) for row in rows[1:]]
    except (ValueError, IndexError):
        raise InputMissing(f"{path}: a value of start_tick is no whole number.") from None


def read_rows(path: Path) -> list[list[str]]:
    """The lines of a CSV file, also with gzip, without empty ones. Raises InputMissing."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as opened:
            raw = opened.read(TRACE_MAX_BYTES)
        return [row for row in csv.reader(raw.decode().splitlines()) if row]
    except FileNotFoundError:
        raise InputMissing(f"{path} is not there: check the path.") from None
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as e:
        why = "it is no text (UTF-8)" if isinstance(e, UnicodeDecodeError) else getattr(e, "strerror", None) or e
        raise InputMissing(f"{path} can't be read: {why}.") from None


# ---- Prices: files of spot prices by tick and pool.


def read_prices(path: Path, trace: Trace) -> Floats:
    """USD an hour by tick and pool of the trace. Raises InputMissing.

    A CSV file, also with gzip: `tick`, then the trace's pools in any order; a row where any price changes, each holds
    until the next.
    """
    rows = read_rows(path)
    header = rows[0] if rows else []
    missing = [p for p in trace.pools if p not in header]
    if not header or header[0] != "tick" or missing:
        raise InputMissing(
            f"{path}: the first line must be tick and all pools of the trace; there is no {', '.join(missing) or 'tick'}."
        )
    try:
        ticks = np.array([int(row[0]) for row in rows[1:]])
        usd = np.array([[float(row[header.index(p)]) for p in trace.pools] for row in rows[1:]])
    except (ValueError, IndexError):
        raise InputMissing(f"{path}: a line is not a tick and {len(header) - 1} prices.") from None
    if len(ticks) == 0 or (np.diff(ticks) <= 0).any() or ticks[0] > trace.first:
        raise InputMissing(f"{path}: ticks must grow, from the first of the trace ({trace.first}) or before.")
    if not (np.isfinite(usd).all() and (usd > 0).all()):
        raise InputMissing(f"{path}: prices must be above 0.")
    held = np.searchsorted(ticks, trace.first + np.arange(len(trace.up)), side="right") - 1
    found: Floats = usd[held]
    return found


# ---- Own history: a controller's observations, as records for training and as a trace for back-tests.
# A controller knows pools that its machines use and pools that refuse. It knows nothing of all others, and of any pool while it
# had no job. Training skips such stretches; a back-test needs a value there, so the user chooses one.

DAY = 86400.0
LEAST_KNOWN = 0.05  # share of the ticks: pools with less are left out
Seen = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Past:
    """A back-test's market: the starts of runs, and the share of its ticks with known states of each pool."""

    trace: Trace
    starts: list[int]
    known: Floats
    left_out: tuple[str, ...]  # pools with too little known


def records_of_own(
    rows: Sequence[Mapping[str, Any]], tick_seconds: float, now: datetime | None = None, days: float = float("inf")
) -> Records:
    """By pool, over the same ticks: the last `days` before `now` (None: the newest entry), as far as the record goes.

    `rows`: pool, at (ISO 8601), up (or null: unknown), in any order; each holds until the pool's next. Raises InputMissing.
    """
    signs = sorted((str(r["pool"]), datetime.fromisoformat(r["at"]).timestamp(), r["up"]) for r in rows)
    if not signs:
        raise InputMissing("This controller has seen no spot market yet: let it run jobs, or give --availability FILE.")
    end = now.timestamp() if now is not None else max(at for _, at, _ in signs)
    begin = max(min(at for _, at, _ in signs), end - days * DAY)
    ticks = max(int((end - begin) / tick_seconds) + 1, 1)
    found: Records = {pool: np.full(ticks, -1, np.int8) for pool, _, _ in signs}
    for pool, at, up in signs:
        found[pool][max(int((at - begin) / tick_seconds), 0) :] = -1 if up is None else int(up)
    return found


def past_of(records: Records, tick_seconds: float, unknown: str = "last") -> Past:
    """The same for back-tests, and a window a day. `unknown`: a key of `UNKNOWN`. Raises InputMissing."""
    share = {pool: float((seen >= 0).mean()) for pool, seen in records.items()}
    pools = sorted(pool for pool in records if share[pool] >= LEAST_KNOWN)
    if not pools:
        raise InputMissing(
            f"Of no pool was it known for {LEAST_KNOWN:.0%} of that time whether spot could be had: look back on fewer days, "
            "let the controller run more jobs, or give --availability FILE."
        )
    up = np.array([UNKNOWN[unknown](records[p]) for p in pools], dtype=np.bool_).T
    starts = list(range(0, len(up), max(1, int(DAY / tick_seconds))))
    known = np.array([share[p] for p in pools])
    return Past(Trace(tuple(pools), 0, up), starts, known, tuple(sorted(set(records) - set(pools))))


def _as_last(seen: Seen) -> Bools:
    """The last observed state; before the first look, the first one."""
    first = int((seen >= 0).argmax())
    last = np.maximum.accumulate(np.where(seen >= 0, np.arange(len(seen)), first))
    up: Bools = seen[last] == 1
    return up


# Assumptions for unknown ticks; the truth lies between `free` and `none`.
UNKNOWN: Mapping[str, Callable[[Seen], Bools]] = {
    "last": _as_last,
    "free": lambda seen: np.not_equal(seen, 0),
    "none": lambda seen: np.equal(seen, 1),
}


# ---- Made-up markets of several pools, with seeds: test policies that were tuned on recorded ones.

Family = Callable[[int, int, float, int], Bools]


def memoryless(ticks: int, pools: int, tick_seconds: float, seed: int) -> Bools:
    """Spells with random ends, each pool by itself: free for 1 to 10 h on average, empty for 0.5 to 4 h."""
    rng = np.random.default_rng(seed)
    free, none = rng.uniform(1, 10, pools), rng.uniform(0.5, 4, pools)
    leave, back = (tick_seconds / 3600 / x for x in (free, none))
    up = np.zeros((ticks, pools), dtype=np.bool_)
    state = rng.random(pools) < free / (free + none)
    for tick in range(ticks):
        change = rng.random(pools) < np.where(state, leave, back)
        state = state ^ change
        up[tick] = state
    return up


def daily(ticks: int, pools: int, tick_seconds: float, seed: int) -> Bools:
    """Pools that run empty together each working day, deeper and longer in some, with heavy-tailed spells between."""
    rng = np.random.default_rng(seed)
    hours = np.arange(ticks) * tick_seconds / 3600
    demand = np.sin(2 * np.pi * (hours - 6) / 24)[:, None] * rng.uniform(0.2, 1.0, pools)
    noise = np.zeros((ticks, pools))
    for scale in (0.5, 3.0, 20.0):
        step = max(int(scale * 3600 / tick_seconds), 1)
        drawn = rng.normal(size=(ticks // step + 2, pools))
        noise += np.repeat(drawn, step, axis=0)[:ticks]
    return np.asarray(demand + 0.5 * noise < rng.uniform(0.2, 0.9, pools), dtype=np.bool_)


FAMILIES: Mapping[str, Family] = {"memoryless": memoryless, "daily": daily}


# ---- Usage: files of memory and cores of a run, second by second.

USAGE_COLUMNS = ("t_s", "rss_mib", "cpu_cores")
MIB = 1 << 20


def read_usage(path: Path) -> Usage:
    """A CSV file, also with gzip, with columns t_s, rss_mib and cpu_cores; ignores others. Raises InputMissing."""
    rows = read_rows(path)
    header = rows[0] if rows else []
    missing = [c for c in USAGE_COLUMNS if c not in header]
    if missing:
        raise InputMissing(f"{path}: there is no column {', '.join(missing)}; it needs {', '.join(USAGE_COLUMNS)}.")
    at = [header.index(c) for c in USAGE_COLUMNS]
    try:
        t, memory, cores = np.array([[float(row[i]) for i in at] for row in rows[1:]]).reshape(-1, 3).T
    except (ValueError, IndexError):
        raise InputMissing(f"{path}: a value of {', '.join(USAGE_COLUMNS)} is no number.") from None
    if len(t) < 2 or not np.isfinite([t, memory, cores]).all() or (np.diff(t) <= 0).any():
        raise InputMissing(f"{path}: t_s must grow from line to line, in at least two of them, and all values be finite.")
    if (memory < 0).any() or (cores < 0).any() or memory.max() <= 0:
        raise InputMissing(f"{path}: memory and cores can't be negative, and memory not always 0.")
    return Usage(np.diff(t), memory[1:] * MIB, cores[1:])
