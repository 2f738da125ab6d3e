"""The controller's clock."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from spotsurfer.ports.clock import SystemClock


def test_it_goes_on_while_the_host_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLOCK_MONOTONIC stands still then: credentials that had lapsed were taken for good, and machines for silent."""
    at = [1000.0]
    monkeypatch.setattr(time, "clock_gettime", lambda clock: at[0] if clock == time.CLOCK_BOOTTIME else 1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    clock = SystemClock()
    before = clock.now()
    at[0] += 3600.0
    assert clock.now() - before == timedelta(hours=1)
