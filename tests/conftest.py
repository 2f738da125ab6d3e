"""What holds for all tests: quick ones first, and a test in boxes can't be skipped."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support.runtime import unpacked_runtime
from support.tree import ROOT

# Controllers that tests start use the checkout's runtime, whoever calls pytest; `make` sets the same.
os.environ.setdefault("SPOTSURFER_RUNTIME__PATH", str(ROOT / "build" / "runtime"))

# How long an example takes is a matter of what else the machine does, and no property.
settings.register_profile("spotsurfer", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("spotsurfer")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in boxes come last: a mistake in the core should not take minutes to show."""
    items.sort(key=lambda item: item.get_closest_marker("boxes") is not None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skipped test in boxes counts as failed: otherwise a host that can't run them would look green."""
    report = yield
    if report.skipped and item.get_closest_marker("boxes") is not None:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} may not be skipped: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A program under test sets logging up for its own stderr, which is gone when the next test logs."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def runtime_folder() -> Path:
    """The unpacked runtime of the agent: prefix/, site/, bin/."""
    return unpacked_runtime()
