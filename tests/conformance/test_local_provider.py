"""The local provider keeps the contract of all providers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.boxes import TAGS, yard
from support.provider_contract import CHECKS, Bench


@pytest.mark.real
@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_contract(check: Callable[[Bench], None], tmp_path: Path) -> None:
    with yard(tmp_path) as y:
        check(Bench(y.provider, tags=TAGS, wait_seconds=10.0))
