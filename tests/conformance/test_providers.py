"""Every provider keeps the contract of `spotsurfer.ports.provider`: boxes, and clouds against their test doubles."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import aws, gcp
from support.boxes import TAGS, yard
from support.ec2 import client as ec2
from support.gce import server as gce
from support.provider_contract import CHECKS, Bench


@pytest.fixture(scope="module")
def test_ec2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ec2.TestEC2]:
    """One for all checks: it takes seconds to start."""
    with aws.credentials(), ec2.serve(tmp_path_factory.mktemp("ec2")) as running:
        running.order("set", pending_seconds=0.1, shutdown_seconds=0.1)
        yield running


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Bench]:
    with yard(tmp_path) as y:
        yield Bench(y.provider, tags=TAGS, wait_seconds=10.0)


@pytest.fixture
def amazon(test_ec2: ec2.TestEC2, tmp_path: Path) -> Bench:
    return Bench(aws.provider(test_ec2, secrets.token_hex(8), tmp_path), wait_seconds=10.0)


@pytest.fixture
def google(tmp_path: Path) -> Iterator[Bench]:
    with gce.serve() as cloud, gcp.credentials(cloud, tmp_path):
        tags = {"spotsurfer:job": "Assembly.one-3f9a1c", "spotsurfer:attempt": "1"}  # more than a label may hold
        yield Bench(gcp.provider(cloud, tmp_path), tags=tags, wait_seconds=10.0)


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
@pytest.mark.parametrize("provider", [*(pytest.param(name, marks=pytest.mark.real) for name in ("local", "amazon")), "google"])
def test_contract(provider: str, check: Callable[[Bench], None], request: pytest.FixtureRequest) -> None:
    check(request.getfixturevalue(provider))
