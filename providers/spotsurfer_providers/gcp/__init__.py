"""VMs of Compute Engine, spot and standard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spotsurfer.common import plugins

if TYPE_CHECKING:
    from spotsurfer.ports.provider import ProviderHost
    from spotsurfer_providers.gcp.provider import GcpProvider


def make(settings: Mapping[str, object], host: ProviderHost) -> GcpProvider:
    """The entry point. Makes no call yet. Raises ConfigError for wrong settings, HostUnfit without the extra `gcp`."""
    from spotsurfer_providers.gcp.settings import read_settings

    wanted = read_settings(settings)
    with plugins.needed_for("The provider gcp", "gcp"):  # takes two seconds, so nobody else imports it
        from spotsurfer_providers.gcp.provider import GcpProvider
    return GcpProvider(wanted, host)
