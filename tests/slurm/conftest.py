"""A played controller, and our programs of Slurm that ask it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from slurm.ours import programs
from slurm.played import Server


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """What leads to them."""
    with TemporaryDirectory(prefix="ss-") as folder:  # short: a socket's path has 107 bytes
        server = Server(Path(folder) / "api.sock")
        try:
            yield programs(Path(folder) / "bin", Path(folder) / "api.sock")
        finally:
            server.close()
