"""What a VM of Compute Engine tells of itself, and the controller reads: its id, and what was ordered with it."""

from __future__ import annotations

NOTICE_SECONDS = 30  # of a spot VM without an early notice
NOTICE_ATTRIBUTE = "spotsurfer-notice-seconds"  # of a spot VM's metadata: how long before its end `preempted` is told


def vm_id(name: str, zone: str) -> str:
    """The instance's id: a call has to name both, and a VM knows both. `zone` may be a path that ends in it."""
    return f"{name}.{zone.rpartition('/')[2]}"
