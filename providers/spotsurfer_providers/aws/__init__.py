"""Instances of EC2, spot and on-demand, and the queue in which AWS reports interruptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spotsurfer.common import plugins

if TYPE_CHECKING:
    from spotsurfer.ports.provider import ProviderHost
    from spotsurfer_providers.aws.provider import AwsProvider


def make(settings: Mapping[str, object], host: ProviderHost) -> AwsProvider:
    """The entry point. Makes no call yet. Raises ConfigError for wrong settings, HostUnfit without the extra `aws`."""
    from spotsurfer_providers.aws.settings import read_settings

    wanted = read_settings(settings)
    with plugins.needed_for("The provider aws", "aws"):
        from spotsurfer_providers.aws.provider import AwsProvider
    return AwsProvider(wanted, host)
