"""A test cloud for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.gce.server import TestGce, serve


@pytest.fixture
def gce() -> Iterator[TestGce]:
    """A test Compute Engine without VMs."""
    with serve() as running:
        yield running
