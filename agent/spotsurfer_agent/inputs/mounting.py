"""What a job's inputs and shared file systems add to its mounts."""

from __future__ import annotations

from spotsurfer_agent.inputs import delivery, shares
from spotsurfer_agent.jobroot import Mount
from spotsurfer_agent.protocol import Spec


def mounts(spec: Spec, base: str) -> list[Mount]:
    """In the order of mounting, after the job's scratch; a matter of the specification, so the same on every machine."""
    return [*delivery.mounts(spec, base), *shares.mounts(spec, base)]
