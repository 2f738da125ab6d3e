"""The provider `gcp` on the test Compute Engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spotsurfer_providers.gcp.provider import GcpProvider
from spotsurfer_providers.gcp.settings import read_settings
from support.gce.cloud import PROJECT, ZONES
from support.gce.server import TestGce

from spotsurfer.ports.clock import Clock, SystemClock
from spotsurfer.ports.provider import ProviderHost

STORE = "gs://spotsurfer-tests/fleet"


def table(endpoint: str, **changes: Any) -> dict[str, Any]:
    """As `[provider.gcp]` has it."""
    subnets = {zone: f"regions/{zone.rpartition('-')[0]}/subnetworks/spotsurfer" for zone in ZONES}
    return {
        "project": PROJECT,
        "subnets": subnets,
        "machine_account": f"machine@{PROJECT}.iam.gserviceaccount.com",
        "machine_types": ["n2-*", "g2-*"],
        "endpoint_url": endpoint,
        **changes,
    }


def provider(gce: TestGce, path: Path, family: str = "f0f0f0", clock: Clock | None = None, **changes: Any) -> GcpProvider:
    """One with nothing in its memory, as after a start."""
    host = ProviderHost(family, path, STORE, clock or SystemClock())
    return GcpProvider(read_settings(table(gce.endpoint, **changes)), host)
