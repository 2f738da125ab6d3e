"""Opening the store as this host reaches it, and the probe for create-if-absent."""

from __future__ import annotations

import secrets
from importlib.metadata import entry_points
from urllib.parse import urlsplit

from spotsurfer_wire.store.obstore import SECRET_OPTIONS, ObstoreStore, open_store
from spotsurfer_wire.store.port import ObjectStore, Rights

from spotsurfer.config.settings import Settings

# Whether a store keeps the one promise that everything rests on: an object that is there can't be created again.


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


# The store as this host reaches it: with credentials that a plug-in for that kind of store finds, else as obstore does.
#
# obstore knows keys in the environment and a machine's role; people's profiles (`AWS_PROFILE`, single sign-on, a role that
# another one takes) are found by the cloud's own library, which the plug-in asks.


def open_for(settings: Settings) -> ObstoreStore:
    """[store] of the configuration. Raises what `open_store` does, and ConfigError where the credentials' source is wrong."""
    return open_store(settings.store_url, settings.store.options, rights(settings))


def rights(settings: Settings) -> Rights | None:
    """Credentials for the store; None: its options have some, or nobody knows that kind of store."""
    if SECRET_OPTIONS & {name.lower().removeprefix("aws_") for name in settings.store.options}:
        return None
    scheme = urlsplit(settings.store_url).scheme
    points = [p for p in entry_points(group="spotsurfer.stores") if p.name == scheme]
    found: Rights | None = points[0].load()(settings.provider.model_extra or {}) if points else None
    return found
