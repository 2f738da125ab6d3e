"""Fleets of three sizes, each made once, and a browser for each file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser
from support.dashboards import Dashboard, chromium, dashboard


@pytest.fixture(scope="package")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    with dashboard(tmp_path_factory.mktemp("empty"), 0) as found:
        yield found


@pytest.fixture(scope="package")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    with dashboard(tmp_path_factory.mktemp("small"), 14) as found:
        yield found


@pytest.fixture(scope="package")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    with dashboard(tmp_path_factory.mktemp("large"), 1000) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found
