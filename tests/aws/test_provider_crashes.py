"""The controller is killed between call and record, fifty times, and comes back: never two machines for one attempt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import aws
from support.ec2.client import TestEC2
from support.killed_lives import SEEDS, live_and_die

from spotsurfer.ports.clock import Clock

pytestmark = pytest.mark.real


@dataclass
class Amazon:
    """EC2; a tag is what may change."""

    ec2: TestEC2
    family: str

    def provider(self, path: Path, clock: Clock, changed: bool) -> Any:
        return aws.provider(self.ec2, self.family, path, clock, tags={"settings": "changed"} if changed else {})

    def fail_after_orders(self, times: int) -> None:
        self.ec2.order("rules", clear=True)
        self.ec2.order("rule", action="RunInstances", code="InternalError", status=500, after=True, times=times)

    def machines(self) -> Sequence[tuple[str, str, str, str]]:
        own = [m for m in self.ec2.machines() if m["tags"].get("spotsurfer:family") == self.family]
        return [(m["id"], *(m["tags"][f"spotsurfer:{name}"] for name in ("job", "attempt", "token"))) for m in own]


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, SEEDS))])
def test_never_two_machines_for_an_attempt(seed: int, cloud: TestEC2, family: str, tmp_path: Path) -> None:
    live_and_die(seed, Amazon(cloud, family), family, tmp_path)
