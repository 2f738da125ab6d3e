"""A test cloud for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import gcp
from support.gce import terraformed
from support.gce.server import TestGce, serve
from support.terraform_google.server import serve as terraform_google


@pytest.fixture(scope="session")
def google() -> Iterator[str]:
    """Where the stand-in of Terraform's provider answers."""
    with terraform_google() as attached:
        yield attached


@pytest.fixture(scope="session")
def made(google: str, tmp_path_factory: pytest.TempPathFactory) -> terraformed.Runs:
    """What Terraform makes, by the runs of the module's tests."""
    return terraformed.made(google, tmp_path_factory.mktemp("module"))


@pytest.fixture
def gce(tmp_path: Path) -> Iterator[TestGce]:
    """A test cloud without VMs; the controller's credentials are in the environment."""
    with serve() as running, gcp.credentials(running, tmp_path):
        yield running
