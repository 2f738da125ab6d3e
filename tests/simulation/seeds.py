"""Which worlds of many are played: those that `SEEDS` names, else a few."""

from __future__ import annotations

import os


def seeds(default: int) -> range:
    """`SEEDS=200` in the environment means the first two hundred, `SEEDS=200:400` the next; without it the first `default`."""
    first, _, end = os.environ.get("SEEDS", str(default)).rpartition(":")
    return range(int(first or 0), int(end))
