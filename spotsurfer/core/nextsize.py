"""How much memory the next run of a step is given, by the peaks of earlier ones.

The guard stands behind it: a run that needs more is frozen and moved up, not killed, so that little room is left and a plain
rule will do.
"""

from __future__ import annotations

from collections.abc import Sequence

MARGIN = 1.08  # of the highest peak
ROOM_BYTES = 12 << 20  # besides: small runs differ by more than a share
LATEST = 20  # runs that are looked at


def next_bytes(peaks: Sequence[float]) -> float | None:
    """`peaks`: bytes, the latest last. None where there are none: then what the user asked for is all that is known."""
    return None if not peaks else MARGIN * max(peaks[-LATEST:]) + ROOM_BYTES
