"""What a controller saw of spot markets, as records for training and as a trace for back-tests.

A controller knows of pools where its machines run and of pools that refuse; of all others, and of all while nobody had a
job, nothing is known. Training passes over such stretches. A back-test needs a value there, so it is asked for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from spotsurfer.model.errors import InputMissing
from spotsurfer.ports.purchase import Floats
from spotsurfer.sim.traces import Records, Trace

DAY = 86400.0
LEAST_KNOWN = 0.05  # share of the ticks: pools of which less is known are not played
Seen = npt.NDArray[np.int8]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Past:
    """A back-test's market: where runs begin, and the share of its ticks in which each pool's state was known."""

    trace: Trace
    starts: list[int]
    known: Floats
    left_out: tuple[str, ...]  # pools of which too little is known


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
    """As it was seen last; before the first look as it was seen then."""
    first = int((seen >= 0).argmax())
    last = np.maximum.accumulate(np.where(seen >= 0, np.arange(len(seen)), first))
    up: Bools = seen[last] == 1
    return up


def _had(seen: Seen) -> Bools:
    return np.not_equal(seen, 0)


def _refused(seen: Seen) -> Bools:
    return np.equal(seen, 1)


# What is taken to be so where nobody knew: the two others are the bounds between which the truth lies.
UNKNOWN: Mapping[str, Callable[[Seen], Bools]] = {"last": _as_last, "free": _had, "none": _refused}
