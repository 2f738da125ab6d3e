"""Recorded usage: files of memory and cores of a run, second by second, scaled to the size and length of another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spotsurfer.model.errors import InputMissing
from spotsurfer.ports.size import Earlier
from spotsurfer.sim.outcome import Floats
from spotsurfer.sim.traces import read_rows

COLUMNS = ("t_s", "rss_mib", "cpu_cores")
BINS = 600  # of an earlier run that is kept
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Usage:
    """Pieces of a run, one after the other: how long each takes with all the cores that it wants, and what it uses."""

    seconds: Floats
    memory_bytes: Floats
    cores: Floats

    @property
    def total_seconds(self) -> float:
        """The run, undisturbed."""
        return float(self.seconds.sum())

    def scaled(self, hours: float | None = None, memory_bytes: float | None = None, cores: float | None = None) -> Usage:
        """The same shape with this length, peak of memory and peak of cores; None = as it is."""
        time = 1.0 if hours is None else hours * 3600 / self.total_seconds
        memory = 1.0 if memory_bytes is None else memory_bytes / float(self.memory_bytes.max())
        most = float(self.cores.max())
        wide = 1.0 if cores is None or most == 0 else cores / most
        return self.times(time, memory, wide)

    def times(self, time: float = 1.0, memory: float = 1.0, cores: float = 1.0) -> Usage:
        """Each multiplied."""
        return Usage(self.seconds * time, self.memory_bytes * memory, self.cores * cores)

    def kept(self) -> Earlier:
        """As the history of a job keeps it: at most 600 pieces, the peak of memory and the mean of cores in each."""
        count = min(BINS, len(self.seconds))
        ends = np.cumsum(self.seconds)
        of = np.minimum((ends - self.seconds / 2) / ends[-1] * count, count - 1).astype(np.int64)
        _, first = np.unique(of, return_index=True)
        seconds = np.add.reduceat(self.seconds, first)
        cores = np.add.reduceat(self.cores * self.seconds, first) / seconds
        peaks = np.maximum.reduceat(self.memory_bytes, first)
        return Earlier(tuple(seconds.tolist()), tuple(peaks.tolist()), tuple(cores.tolist()))


def read_usage(path: Path) -> Usage:
    """A CSV file, also with gzip, with columns t_s, rss_mib and cpu_cores, others are left alone. Raises InputMissing."""
    rows = read_rows(path)
    header = rows[0] if rows else []
    missing = [c for c in COLUMNS if c not in header]
    if missing:
        raise InputMissing(f"{path}: there is no column {', '.join(missing)}; it needs {', '.join(COLUMNS)}.")
    at = [header.index(c) for c in COLUMNS]
    try:
        t, memory, cores = np.array([[float(row[i]) for i in at] for row in rows[1:]]).reshape(-1, 3).T
    except (ValueError, IndexError):
        raise InputMissing(f"{path}: a value of {', '.join(COLUMNS)} is no number.") from None
    if len(t) < 2 or not np.isfinite([t, memory, cores]).all() or (np.diff(t) <= 0).any():
        raise InputMissing(f"{path}: t_s must grow from line to line, in at least two of them, and all values be finite.")
    if (memory < 0).any() or (cores < 0).any() or memory.max() <= 0:
        raise InputMissing(f"{path}: memory and cores can't be negative, and memory not always 0.")
    return Usage(np.diff(t), memory[1:] * MIB, cores[1:])
