"""The entry point of `spotsurfer doctor` for AWS."""

from __future__ import annotations

from collections.abc import Mapping

from spotsurfer.ports.provider import ProviderHost
from spotsurfer_providers import cloud_doctor
from spotsurfer_providers.aws import make


def look(table: Mapping[str, object], host: ProviderHost) -> str:
    """A summary in half a sentence. Raises ConfigError, ProviderError: a sentence with the remedy."""
    return cloud_doctor.look(make(table, host))
