"""What a controller saw of spot markets, as records for training and as a trace for back-tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from spotsurfer.model.errors import InputMissing
from spotsurfer.sim.traces import Records, Trace

DAY = 86400.0


def records_of_own(rows: Sequence[Mapping[str, Any]], tick_seconds: float) -> Records:
    """By pool, over the same ticks. `rows`: pool, at (ISO 8601), up (or null: unknown), in any order. Raises InputMissing."""
    signs = sorted((str(r["pool"]), datetime.fromisoformat(r["at"]).timestamp(), r["up"]) for r in rows)
    if not signs:
        raise InputMissing("This controller has seen no spot market yet: let it run jobs, or give --availability FILE.")
    begin, end = min(at for _, at, _ in signs), max(at for _, at, _ in signs)
    ticks = int((end - begin) / tick_seconds) + 1
    found: Records = {pool: np.full(ticks, -1, np.int8) for pool, _, _ in signs}
    for pool, at, up in signs:
        found[pool][int((at - begin) / tick_seconds) :] = -1 if up is None else int(up)
    return found


def trace_of_own(records: Records, tick_seconds: float) -> tuple[Trace, list[int]]:
    """The same for back-tests, and a window a day. Where nobody knew, the pool is taken to be as it was seen last."""
    pools = sorted(records)
    up = np.array([_filled(records[p]) for p in pools], dtype=np.bool_).T
    return Trace(tuple(pools), 0, up), list(range(0, len(up), max(1, int(DAY / tick_seconds))))


def _filled(seen: npt.NDArray[np.int8]) -> npt.NDArray[np.bool_]:
    last = np.maximum.accumulate(np.where(seen >= 0, np.arange(len(seen)), 0))
    up: npt.NDArray[np.bool_] = seen[last] == 1
    return up
