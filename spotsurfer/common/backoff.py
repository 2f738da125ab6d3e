"""The back-off of everything in the controller that is tried again."""

from __future__ import annotations

DOUBLINGS_MAX = 16  # the longest wait comes long before: this keeps the number small


def backoff_seconds(failures: int, first: float, longest: float) -> float:
    """The wait after so many failures in a row (at least one): doubled with each one, up to the longest."""
    return min(first * 2.0 ** min(failures - 1, DOUBLINGS_MAX), longest)
