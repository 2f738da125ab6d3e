"""Where the pager's chunks come from."""

from __future__ import annotations

from collections.abc import Iterable

from spotsurfer_agent.chunks.fetcher import Fetcher
from spotsurfer_agent.chunks.keys import Keys
from spotsurfer_agent.manifest import Stored
from spotsurfer_agent.pager.content import Chunks
from spotsurfer_agent.pager.plan import Plan
from spotsurfer_agent.store import ObjectStore


class _Plain(Fetcher):
    def ahead(self, chunks: Iterable[Stored]) -> None:
        """Nothing is fetched before it is asked for."""


def reader(plan: Plan, store: ObjectStore, keys: Keys) -> Chunks:
    """Chunks of the job."""
    return _Plain(store, plan.job, keys)
