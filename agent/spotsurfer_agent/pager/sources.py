"""Where the pager's chunks come from."""

from __future__ import annotations

from spotsurfer_agent.chunks.keys import Keys
from spotsurfer_agent.chunks.limits import Limits
from spotsurfer_agent.chunks.reader import Reader
from spotsurfer_agent.pager.content import Chunks
from spotsurfer_agent.pager.plan import Plan
from spotsurfer_agent.store import ObjectStore


def reader(plan: Plan, store: ObjectStore, keys: Keys) -> Chunks:
    """Chunks of the job."""
    return Reader(store, plan.job, keys, Limits(memory_bytes=plan.memory_bytes, puts=plan.threads))
