"""A reader with the usual limits."""

from __future__ import annotations

from spotsurfer_agent.chunks.keys import Keys
from spotsurfer_agent.chunks.limits import Limits
from spotsurfer_agent.chunks.reader import BadChunk as BadChunk
from spotsurfer_agent.chunks.reader import Reader
from spotsurfer_agent.store import ObjectStore


class Fetcher(Reader):
    """Reads chunks of one job."""

    def __init__(self, store: ObjectStore, job: str, keys: Keys) -> None:
        super().__init__(store, job, keys, Limits())
