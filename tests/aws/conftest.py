"""One test EC2 for each file that asks for it; each test has a family of its own in it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from support import aws
from support.ec2.client import TestEC2, serve
from support.ec2.orders import usual


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestEC2]:
    with aws.credentials(), serve(tmp_path_factory.mktemp("ec2")) as running:
        running.order("set", pending_seconds=0.05, shutdown_seconds=0.05)
        yield running


@pytest.fixture
def cloud(server: TestEC2) -> Iterator[TestEC2]:
    """As it was at first: no rules, no limits of capacity, nothing in the log."""
    aws.ground(server.endpoint)
    server.order("log")
    yield server
    server.order("rules", clear=True)
    server.order("set", unlisted_seconds=0)
    for kind in ("m6i.large", "c6i.large"):
        server.order("capacity", pool=f"*/{kind}", market="spot", count=None)


@pytest.fixture(scope="module")
def bare_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestEC2]:
    with serve(tmp_path_factory.mktemp("ec2")) as running:
        yield running


@pytest.fixture
def layer(bare_server: TestEC2) -> Iterator[TestEC2]:
    """For tests of the test EC2 itself: everything at once, no ground of ours, nobody's credentials in the environment."""
    yield bare_server
    usual(bare_server)


@pytest.fixture
def family() -> str:
    return secrets.token_hex(8)
