"""The store as this host reaches it: with credentials that a plug-in for that kind of store finds, else as obstore does.

obstore knows keys in the environment and a machine's role; people's profiles (`AWS_PROFILE`, single sign-on, a role that
another one takes) are found by the cloud's own library, which the plug-in asks.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from urllib.parse import urlsplit

from spotsurfer_agent.store import SECRET_OPTIONS, ObstoreStore, open_store
from spotsurfer_agent.storeport import Rights

from spotsurfer.settings import Settings


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
