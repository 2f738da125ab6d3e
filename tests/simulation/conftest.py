"""What holds in virtual time."""

from __future__ import annotations

import logging
import os
import re
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


@pytest.fixture(autouse=True)
def _one_processor() -> Iterator[None]:
    """The threads of a world take turns. To wake one on another processor takes longer than most turns: a third of the time."""
    before = os.sched_getaffinity(0)
    worker = int(re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or 0)
    os.sched_setaffinity(0, {sorted(before)[worker % len(before)]})
    yield
    os.sched_setaffinity(0, before)
