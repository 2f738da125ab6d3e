"""The controller is killed between call and record, fifty times, and comes back: never two VMs for one attempt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_providers.gcp.vm_request import TAGS_KEY, TOKEN_KEY
from spotsurfer_wire.google_vm import vm_id
from support import gcp
from support.gce.server import TestGce
from support.killed_lives import SEEDS, live_and_die

from spotsurfer.ports.clock import Clock


@dataclass
class Google:
    """Compute Engine; a label is what may change."""

    gce: TestGce
    family: str

    def provider(self, path: Path, clock: Clock, changed: bool) -> Any:
        return gcp.provider(self.gce, path, self.family, clock, labels={"settings": "changed"} if changed else {})

    def fail_after_orders(self, times: int) -> None:
        self.gce.answers["compute.instances.insert"] = [None] * times

    def machines(self) -> Sequence[tuple[str, str, str, str]]:
        found = []
        for vm in self.gce.cloud.made:
            tags = json.loads(vm.metadata[TAGS_KEY])
            found.append((vm_id(vm.name, vm.zone), tags["spotsurfer:job"], tags["spotsurfer:attempt"], vm.metadata[TOKEN_KEY]))
        return found


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, SEEDS))])
def test_never_two_vms_for_an_attempt(seed: int, gce: TestGce, tmp_path: Path) -> None:
    live_and_die(seed, Google(gce, "f0f0f0"), "f0f0f0", tmp_path)
    assert gce.cloud.made
