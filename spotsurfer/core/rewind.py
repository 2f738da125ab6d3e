"""Going back to a checkpoint that its user chose: held, ended or running, the next grant is from there."""

from __future__ import annotations

from spotsurfer.model.job import Rewind, Wish
from spotsurfer.model.snapshot import JobSeen


def going_back(seen: JobSeen) -> Rewind | None:
    """The order that still stands: no grant after it was from its checkpoint. A cancelled job goes nowhere any more."""
    asked, head = seen.job.rewind, seen.head
    if asked is None or head is None or seen.job.wish is Wish.CANCEL:
        return None
    return None if any(n > asked.after and c == asked.checkpoint for n, c in head.grants) else asked
