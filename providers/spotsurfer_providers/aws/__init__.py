"""Instances of EC2, spot and on-demand, and the queue in which AWS says what becomes of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spotsurfer.model.errors import ConfigError

if TYPE_CHECKING:
    from spotsurfer.ports.provider import ProviderHost
    from spotsurfer_providers.aws.provider import AwsProvider


def make(settings: Mapping[str, object], host: ProviderHost) -> AwsProvider:
    """The entry point. Calls nothing of AWS yet. Raises ConfigError for wrong settings or where boto3 is missing."""
    from spotsurfer_providers.aws.settings import read_settings

    wanted = read_settings(settings)
    try:
        from spotsurfer_providers.aws.provider import AwsProvider
    except ModuleNotFoundError as e:
        raise ConfigError(f"the provider aws needs {e.name}: install spotsurfer[aws]") from e
    return AwsProvider(wanted, host)
