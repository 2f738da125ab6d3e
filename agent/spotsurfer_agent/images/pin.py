"""What a job's image name meant when its first attempt asked: written once, so that a tag that moves on changes no job."""

from __future__ import annotations

from dataclasses import dataclass

from spotsurfer_agent import clock, objectkeys
from spotsurfer_agent.coding import decode, encode
from spotsurfer_agent.storeport import ObjectStore, StoreError


@dataclass(frozen=True, slots=True)
class Pin:
    """`jobs/<job>/IMAGE.json`."""

    reference: str  # as the job names it
    digest: str  # of the manifest for `architecture`
    architecture: str
    packed_bytes: int = 0
    at: str = ""  # for people


class Pins:
    """The pin of one job; read from the store once."""

    def __init__(self, store: ObjectStore, job: str) -> None:
        self._store, self._key = store, objectkeys.image_key(job)
        self._known: Pin | None = None

    def read(self) -> Pin | None:
        """The pin, None where no attempt has resolved the name yet. Raises StoreError, ProtocolError."""
        if self._known is None:
            data = self._store.get(self._key)
            self._known = decode(Pin, data) if data is not None else None
        return self._known

    def write(self, reference: str, digest: str, architecture: str, packed_bytes: int) -> Pin:
        """Pin it, unless somebody was faster: then theirs counts. Raises ImageError, StoreError."""
        wanted = Pin(reference, digest, architecture, packed_bytes, clock.utc_text())
        if self._store.create(self._key, encode(wanted)):
            self._known = wanted
            return wanted
        found = self.read()
        if found is None:
            raise StoreError(f"{self._key} can't be written and is not there")
        return found
