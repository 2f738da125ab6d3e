"""Instances as boxes on this host: the default for trying spotsurfer, and the hardware of its tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spotsurfer.ports.provider import Provider, ProviderHost


def make(settings: Mapping[str, object], host: ProviderHost) -> Provider:
    """The entry point. Raises ConfigError for wrong settings or a wrong scenario, NotRoot and HostUnfit."""
    # Imported here, because process 1 of every box imports this package and should not load all of it.
    from spotsurfer_providers.local.host_checks import check_host
    from spotsurfer_providers.local.provider import LocalProvider
    from spotsurfer_providers.local.settings import read_settings

    check_host()
    return LocalProvider(read_settings(settings), host)
