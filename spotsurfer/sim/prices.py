"""Recorded prices: files of what a spot machine cost, by tick and pool."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from spotsurfer.model.errors import InputMissing
from spotsurfer.ports.purchase import Floats
from spotsurfer.sim.traces import Trace, read_rows


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
