"""What holds in virtual time."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _silent_agents() -> Iterator[None]:
    """Agents log each call that fails; here thousands do so on purpose."""
    log = logging.getLogger("spotsurfer_agent")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)
