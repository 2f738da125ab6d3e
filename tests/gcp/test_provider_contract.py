"""The provider gcp keeps the contract of all providers, against the test Compute Engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support import gcp
from support.gce.server import TestGce
from support.provider_contract import CHECKS, Bench

TAGS = {"spotsurfer:job": "Assembly.one-3f9a1c", "spotsurfer:attempt": "1"}


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_contract(check: Callable[[Bench], None], gce: TestGce, tmp_path: Path) -> None:
    check(Bench(gcp.provider(gce, tmp_path), tags=TAGS, wait_seconds=10.0))
