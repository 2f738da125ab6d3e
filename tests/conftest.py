"""What holds for all tests: levels, marks that are kept, skips that count as failures."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support import levels
from support.levels import Level
from support.runtime import unpacked_runtime
from support.tree import ROOT

# Controllers that tests start use the checkout's runtime, whoever calls pytest; `make` sets the same.
os.environ.setdefault("SPOTSURFER_RUNTIME__PATH", str(ROOT / "build" / "runtime"))

# How long an example takes is a matter of what else the machine does, and no property.
settings.register_profile("spotsurfer", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("spotsurfer")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Without `--level` everything that is named runs: whoever names a test wants it."""
    group = parser.getgroup("spotsurfer")
    group.addoption("--level", type=Level, choices=list(Level), default=Level.ALL, help="which tests run: see tests/README.md")
    group.addoption("--record", type=Path, metavar="FILE", help="write how long each test took, as JSON")


def _level(config: pytest.Config) -> Level:
    return Level(config.getoption("level"))


def pytest_report_header(config: pytest.Config) -> str | None:
    """Which share of the real tests runs, and how to have the same one again."""
    if _level(config) is not Level.DEFAULT:
        return None
    seed = levels.seed()
    return (
        f"level default: real tests of {levels.SAMPLED_SECONDS:.0f} s are chosen by seed {seed}; SEED={seed} chooses them again"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what the level leaves out. Real tests come last: a mistake in the core should not take minutes to show.

    Virtual worlds come first, and of the real tests the files with the longest: so workers that share the tests end together.
    Slow tests of anything else run whole programs against deadlines: each has the machine for itself.
    """
    for item in items:
        if item.get_closest_marker("slow") and "simulation" not in item.path.parts:
            item.add_marker(pytest.mark.alone)
    items[:], left = levels.select(items, _level(config), levels.seed())
    durations = levels.recorded()
    longest: dict[Path, float] = {}
    for item in items:
        if item.get_closest_marker("real") is not None:
            longest[item.path] = max(longest.get(item.path, 0.0), durations.get(item.nodeid, 0.0))

    def turn(item: pytest.Item) -> tuple[bool, bool, float]:
        real = item.get_closest_marker("real") is not None
        return real, "simulation" not in item.path.parts, -longest[item.path] if real else 0.0

    items.sort(key=turn)
    if left:
        config.hook.pytest_deselected(items=left)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Whoever makes a box or a server asks whether this test may: `levels.only_for_real_tests`."""
    levels.RUNNING = item
    try:
        return (yield)
    finally:
        levels.RUNNING = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A skipped real test counts as failed: otherwise a host that can't run it would look green."""
    report = yield
    if report.skipped and item.get_closest_marker("real") is not None:
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} may not be skipped: {report.longrepr}"
    return report


class _Recorder:
    """Adds up what the phases of each real test took, in whichever worker it ran."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if "real" in report.keywords:
            self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        """What earlier runs recorded of other tests stays."""
        found = levels.recorded(self._path) | {name: round(taken, 1) for name, taken in self._seconds.items()}
        self._path.write_text(json.dumps(dict(sorted(found.items())), indent=0, ensure_ascii=False) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """With workers, only the process that hears of all tests records."""
    path = config.getoption("record")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder(path))


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
