"""What the names of jobs' container images meant when their first attempts asked: the agents' pins, as a user sees them."""

from __future__ import annotations

from spotsurfer_agent.coding import ProtocolError
from spotsurfer_agent.images.pin import Pins
from spotsurfer_agent.storeport import ObjectStore, StoreError


class ImageDigests:
    """Digests by job. A pin never changes, so each is read once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: dict[str, str] = {}

    def of(self, job: str, image: str) -> str:
        """The digest that `image` is pinned to; "" = none, not asked yet, or the store does not say."""
        if image and job not in self._known:
            try:
                pin = Pins(self._store, job).read()
            except (StoreError, ProtocolError):
                return ""
            if pin is not None:
                self._known[job] = pin.digest
        return self._known.get(job, "") if image else ""
