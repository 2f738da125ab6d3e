"""Leadership of a store: it belongs to one family, and the newest generation of that family leads."""

from __future__ import annotations

import secrets

from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.messages import Controller, StoreInfo
from spotsurfer_wire.store.port import ObjectStore, StoreError

from spotsurfer.model.errors import StoreOwned, StoreUnwritable, Superseded
from spotsurfer.ports.clock import Clock
from spotsurfer.store.open_store import keeps_first

OVERWRITES = (
    "the store {url} overwrites objects that were to be created only if absent (If-None-Match), so it can't say who owns a "
    "job: use S3 itself, or another store with conditional writes"
)


def claim_store(store: ObjectStore, family: str, url: str, key: str = "") -> None:
    """Claim the store, or check that it is ours. `key`: our secret's fingerprint. Raises StoreOwned, StoreUnwritable."""
    info = json_codec.encode(StoreInfo(family, key=key))
    try:
        if not keeps_first(store):
            raise StoreUnwritable(OVERWRITES.format(url=url))
        if store.create(object_keys.store_key(), info):
            return
        there = store.get(object_keys.store_key())
    except StoreError as e:
        raise StoreUnwritable(f"the store {url} can't be written: {e}; check store.url, its rights and its free space") from e
    owner = json_codec.decode(StoreInfo, there) if there else StoreInfo("nobody")
    if owner.family != family:
        raise StoreOwned(
            f"the store {url} belongs to the controller family {owner.family}, this one is {family}: run with the data_dir of "
            "that family, or bring it back from its backup (`spotsurfer restore`); without one, its store.key is enough for "
            "`spotsurfer adopt`. Else use another store.url"
        )
    if owner.key and key and owner.key != key:
        raise StoreOwned(
            f"the checkpoints in {url} were made with another key than this controller's: bring that key back from a backup "
            "(`spotsurfer restore`), or name a copy of it as [store] key_file. Else use another store.url"
        )


class Leadership:
    """One generation entry per start; the next one ends this one's right to act.

    No lease is renewed: on one host a lock on the state folder keeps two controllers apart, and an old controller that wakes up
    after its successor began finds the newer entry before it acts. An action that changes the cloud needs a successful check
    just before, because a controller that lost the store, but not the cloud, would end its successor's machines. The store
    needs no check: launch tokens and head entries are the same for all generations, so nothing happens twice there.
    """

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.generation = 0

    def take(self) -> int:
        """Create the next generation; raises StoreUnwritable."""
        nonce = secrets.token_hex(8)
        try:
            listed = self._store.list(object_keys.controller_prefix())
            number = max((int(x.key.rsplit("/", 1)[1].removesuffix(".json")) for x in listed), default=0) + 1
            entry = Controller(number, nonce, self._clock.now().isoformat())
            while not self._store.create(object_keys.controller_key(number), json_codec.encode(entry)):
                number += 1
                entry = Controller(number, nonce, entry.at)
        except StoreError as e:
            raise StoreUnwritable(f"the store can't be written: {e}") from e
        self.generation = number
        return number

    def check(self) -> None:
        """Raises Superseded if a newer controller took over, StoreError if that can't be determined.

        It can't be determined either if our own entry is gone: then it is another store, for example a mount point without its
        file system.
        """
        if self._store.get(object_keys.controller_key(self.generation + 1)) is not None:
            raise Superseded(f"controller generation {self.generation + 1} leads now; generation {self.generation} stops")
        if self._store.get(object_keys.controller_key(self.generation)) is None:
            raise StoreError(
                f"the store has no entry of this controller (generation {self.generation}): is it still the same one?"
            )
