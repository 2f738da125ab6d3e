"""`spotsurfer doctor` on Google: what a controller needs is tried, and nothing is made."""

from __future__ import annotations

from pathlib import Path

import pytest
from spotsurfer_providers.gcp import doctor
from spotsurfer_providers.gcp.provider import ACT_AS, CONSUME, USE_SUBNET
from support import gcp
from support.gce.identity import Grant
from support.gce.server import CONTROLLER, TestGce

from spotsurfer.model.errors import ProviderDenied
from spotsurfer.ports.clock import SystemClock
from spotsurfer.ports.provider import ProviderHost

RIGHTS = {
    USE_SUBNET, ACT_AS, CONSUME, "compute.globalOperations.list", "compute.instances.list", "compute.machineTypes.list",
    "iam.serviceAccounts.getAccessToken",
}  # fmt: skip


def look(gce: TestGce, path: Path) -> str:
    return doctor.look(gcp.table(gce.endpoint), ProviderHost("f0f0f0", path, gcp.STORE, SystemClock()))


def test_all_is_well(gce: TestGce, tmp_path: Path) -> None:
    gce.identity.grants = [Grant(CONTROLLER, frozenset(RIGHTS))]
    said = look(gce, tmp_path)
    assert said.startswith("9 pools in 3 zones, spot from 0.0389 USD an hour, ")
    assert said.endswith("; prices of 2026-08-03; whether VMs may be made shows at the first order")
    assert not gce.cloud.vms and "compute.instances.insert" not in gce.calls


@pytest.mark.parametrize("lacking", sorted(RIGHTS))
def test_what_is_lacking_is_named(lacking: str, gce: TestGce, tmp_path: Path) -> None:
    gce.identity.grants = [Grant(CONTROLLER, frozenset(RIGHTS - {lacking}))]
    with pytest.raises(ProviderDenied, match=lacking):
        look(gce, tmp_path)
