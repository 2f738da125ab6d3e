"""The provider aws keeps the contract of all providers, against the test EC2."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from spotsurfer_providers.conformance import CHECKS, Bench
from support import aws
from support.ec2.client import TestEC2, serve


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestEC2]:
    with aws.credentials(), serve(tmp_path_factory.mktemp("ec2")) as running:
        running.order("set", pending_seconds=0.1, shutdown_seconds=0.1)
        yield running


@pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
def test_contract(check: Callable[[Bench], None], cloud: TestEC2, tmp_path: Path) -> None:
    check(Bench(aws.provider(cloud, secrets.token_hex(8), tmp_path), wait_seconds=10.0))
