"""What the next run of a step is given, by earlier ones: memory by their peaks, and the type that it begins on.

The guard stands behind it: a run that needs more is frozen and moved up, not killed, so that little room is left and a plain
rule will do. Where nobody says that it does, a run is given no less than was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from spotsurfer.core import size
from spotsurfer.ports.size import Size, SizeTerms

MARGIN = 1.08  # of the highest peak
ROOM_BYTES = 12 << 20  # besides: small runs differ by more than a share
LATEST = 20  # runs that are looked at


def next_bytes(peaks: Sequence[float]) -> float | None:
    """`peaks`: bytes, the latest last. None where there are none: then what the user asked for is all that is known."""
    return None if not peaks else MARGIN * max(peaks[-LATEST:]) + ROOM_BYTES


def begins_on(policy: Size, terms: SizeTerms, peaks: Sequence[float], guarded: bool) -> int:
    """The type for a run that begins. `terms.start`: what was asked for; `guarded`: it will be moved up before its memory ends.

    As the policy plans by `terms.earlier`; where it has no opinion, the cheapest with as many cores and room for the peaks.
    """
    asked, need = terms.start, next_bytes(peaks) or 0.0
    kinds = terms.kinds
    enough = [i for i, k in enumerate(kinds) if k.usable_bytes >= need and k.cores >= kinds[asked].cores]
    least = min(enough, key=lambda i: (kinds[i].usd_per_hour, -kinds[i].memory_bytes), default=asked)
    saves = guarded and kinds[least].usd_per_hour < kinds[asked].usd_per_hour
    other = least if saves or kinds[asked].usable_bytes < need else asked
    planned = size.begin(policy, terms).here if guarded else asked
    return other if planned == asked else planned
