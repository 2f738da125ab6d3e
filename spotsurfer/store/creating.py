"""Whether a store keeps the one promise that everything rests on: an object that is there can't be created again."""

from __future__ import annotations

import secrets

from spotsurfer_agent.storeport import ObjectStore


def keeps_first(store: ObjectStore) -> bool:
    """Create one small object twice. False: the store overwrites, so two attempts could own a job. Raises StoreError.

    S3 has conditional writes (`If-None-Match: *`) since August 2024, and answers the second one with 412. Stores that only
    speak its protocol may ignore the condition.
    """
    key = f"proof-{secrets.token_hex(8)}"
    store.create(key, b"first")  # what it answers says nothing: a client that asked again after a lost answer finds its own
    second = store.create(key, b"second")
    kept = store.get(key) == b"first"
    store.delete([key])
    return kept and not second
