"""The demonstration's own verdict can fail: each promise, broken once."""

from __future__ import annotations

from typing import Any

import pytest

from spotsurfer.demo.runs import failures

KEPT: dict[str, Any] = {
    "identical": True,
    "moves": 5,
    "controller_kills": 1,
    "unnoticed_losses": 1,
    "on_demand_fallbacks": 1,
    "restarts_from_zero": 0,
    "job_cpu_ratio": 1.1,
    "work_lost_announced_seconds": [1.0, 0.0],
    "work_lost_unannounced_seconds": [9.0],
}
BROKEN: list[tuple[str, Any]] = [
    ("identical", False),
    ("moves", 4),
    ("controller_kills", 0),
    ("unnoticed_losses", 0),
    ("on_demand_fallbacks", 0),
    ("restarts_from_zero", 1),
    ("job_cpu_ratio", 1.2),
    ("work_lost_announced_seconds", [0.0, 1.1]),
    ("work_lost_unannounced_seconds", [99.0]),
]


def test_all_kept() -> None:
    assert failures(KEPT) == []


@pytest.mark.parametrize(("key", "value"), BROKEN)
def test_one_broken(key: str, value: object) -> None:
    assert len(failures({**KEPT, key: value})) == 1
