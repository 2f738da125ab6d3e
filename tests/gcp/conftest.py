"""A test cloud for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import gcp
from support.gce.server import TestGce, serve


@pytest.fixture
def gce(tmp_path: Path) -> Iterator[TestGce]:
    """A test cloud without VMs; the controller's credentials are in the environment."""
    with serve() as running, gcp.credentials(running, tmp_path):
        yield running
