"""Recorded markets: files of availability by tick and pool, and the windows to be played."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spotsurfer.model.errors import InputMissing

TRACE_MAX_BYTES = 1 << 30
Records = dict[str, npt.NDArray[np.int8]]  # by pool, a value a tick: 1 could be had, 0 not, -1 nobody knew


@dataclass(frozen=True, slots=True)
class Trace:
    """`up[tick, pool]`: a spot machine could be had. Ticks follow each other without a gap; the first has number `first`."""

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
    """For training."""
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
