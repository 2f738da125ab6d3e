"""Where the pager's bytes come from."""

from __future__ import annotations

from pathlib import Path

from spotsurfer_agent.access.opening import Way
from spotsurfer_agent.cachestore import Cache, CachedStore
from spotsurfer_agent.chunks.keys import Keys
from spotsurfer_agent.chunks.limits import Limits
from spotsurfer_agent.chunks.reader import BadChunk, Reader
from spotsurfer_agent.manifest import Manifest
from spotsurfer_agent.pager.content import Content
from spotsurfer_agent.pager.plan import BLAME_IMAGE, BLAME_MACHINE, BLAME_STORE, Plan
from spotsurfer_agent.patience import Patient
from spotsurfer_agent.storeport import ObjectStore, StoreError


def keys(plan: Plan) -> Keys:
    """The job's."""
    return Keys.of_hex(plan.key, plan.lineage, plan.encrypts)


def store(plan: Plan) -> ObjectStore:
    """As the plan has it."""
    opened = Patient(Way.carried(plan.way).open())
    return CachedStore(opened, Cache(Path(plan.cache))) if plan.cache else opened


def content(plan: Plan, image: Manifest, where: ObjectStore) -> Content:
    """The image's files, from chunks of the job there."""
    return Content(image, Reader(where, plan.job, keys(plan), Limits(memory_bytes=plan.memory_bytes, puts=plan.threads)))


def blame(e: BaseException) -> str:
    """Who is to blame for memory that can't be brought, as a loss tells it."""
    if isinstance(e, BadChunk):
        return BLAME_IMAGE
    return BLAME_STORE if isinstance(e, StoreError) else BLAME_MACHINE
