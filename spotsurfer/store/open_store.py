"""Opens the store as this host reaches it, and probes it for create-if-absent."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from importlib.metadata import entry_points
from urllib.parse import urlsplit

from spotsurfer_wire.store.obstore import ObstoreStore, has_credentials, open_store
from spotsurfer_wire.store.port import ObjectStore, Rights

from spotsurfer.config.settings import Settings

# ---- Probe: everything relies on one promise of the store, that an existing object can't be created again


def keeps_first(store: ObjectStore) -> bool:
    """Create one small object twice. False: the store overwrites, so two attempts could own a job. Raises StoreError.

    S3 has conditional writes (`If-None-Match: *`) since August 2024, and answers the second one with 412. Stores that only
    speak its protocol may ignore the condition.
    """
    key = f"proof-{secrets.token_hex(8)}"
    store.create(key, b"first")  # the answer says nothing: a client that retries after a lost answer finds its own object
    second = store.create(key, b"second")
    kept = store.get(key) == b"first"
    store.delete([key])
    return kept and not second


# ---- Opening: with credentials from a plug-in for that kind of store, else with obstore's own
#
# obstore knows keys in the environment and a machine's role. The plug-in asks the cloud's own library, which also finds
# people's profiles (`AWS_PROFILE`, single sign-on, assumed roles).


def open_for(settings: Settings) -> ObstoreStore:
    """[store] of the configuration. Raises as `open_store` does, and ConfigError if the credentials' source is wrong."""
    return open_place(settings, settings.store_url, settings.store.options)


def open_place(settings: Settings, url: str, options: Mapping[str, str]) -> ObstoreStore:
    """The store, or another place that is used like it. Raises as `open_for` does."""
    return open_store(url, options, rights(settings, url, options))


def rights(settings: Settings, url: str, options: Mapping[str, str]) -> Rights | None:
    """Credentials for a place; None: its options have some, or no plug-in knows that kind of store."""
    if has_credentials(options):
        return None
    scheme = urlsplit(url).scheme
    points = [p for p in entry_points(group="spotsurfer.stores") if p.name == scheme]
    found: Rights | None = points[0].load()(settings.provider.model_extra or {}) if points else None
    return found
