"""The provider `gcp` on the test Compute Engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_providers.gcp.provider import GcpProvider
from spotsurfer_providers.gcp.settings import read_settings
from support.gce.cloud import PROJECT
from support.gce.server import TestGce
from support.gce.storage import BUCKET

from spotsurfer.ports.clock import Clock, SystemClock
from spotsurfer.ports.provider import ProviderHost

STORE = f"gs://{BUCKET}/store"
OWN_ZONES = ("us-central1-a", "us-central1-b", "europe-west4-a")  # of two regions
MACHINE, JOB = (f"spotsurfer-{name}@{PROJECT}.iam.gserviceaccount.com" for name in ("machine", "job"))


def table(endpoint: str, **changes: Any) -> dict[str, Any]:
    """As `[provider.gcp]` has it."""
    subnets = {zone: f"regions/{zone.rpartition('-')[0]}/subnetworks/spotsurfer" for zone in OWN_ZONES}
    return {
        "project": PROJECT,
        "subnets": subnets,
        "machine_account": MACHINE,
        "job_account": JOB,
        "preemptions": f"projects/{PROJECT}/subscriptions/spotsurfer-preemptions",
        "machine_types": ["n2-*", "g2-*"],
        "endpoint_url": endpoint,
        **changes,
    }


@contextmanager
def credentials(gce: TestGce, path: Path) -> Iterator[None]:
    """The default chain finds the controller's account, and never asks this host's metadata service."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(gce.key_file(path / "controller.json")))
        yield


def provider(gce: TestGce, path: Path, family: str = "f0f0f0", clock: Clock | None = None, **changes: Any) -> GcpProvider:
    """One with nothing in its memory, as after a start."""
    host = ProviderHost(family, path, STORE, clock or SystemClock())
    return GcpProvider(read_settings(table(gce.endpoint, **changes)), host)
