"""How long the server takes with 1,000 jobs."""

from __future__ import annotations

import time

import pytest
from support.dashboards import Dashboard
from support.made_up_fleet import STORY

from spotsurfer.model.access import Role

pytestmark = [pytest.mark.real, pytest.mark.alone]
# Seconds, the best of three.
BOUNDS = {
    "/": 0.3,
    "/?q=ada+run=7&sort=cost": 0.3,
    "/?page=10": 0.3,
    "/queue": 0.3,
    "/pools": 0.3,
    "/costs": 0.15,
    f"/jobs/{STORY}": 0.5,
}


@pytest.mark.parametrize("path", BOUNDS)
def test_pages_come_soon(large: Dashboard, path: str) -> None:
    with large.client("olga", Role.OPERATOR) as olga:
        took = []
        for _ in range(3):
            began = time.perf_counter()
            assert olga.get(path).status_code == 200
            took.append(time.perf_counter() - began)
        print(f"{path}: {min(took) * 1000:.0f} ms, first {took[0] * 1000:.0f} ms")
    assert min(took) <= BOUNDS[path], took
