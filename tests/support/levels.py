"""The levels of tests: what each one runs, and the share of the real tests that a commit runs.

`tests/README.md` tells a person which level tries what.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from support.tree import ROOT

DURATIONS = ROOT / "tests" / "durations.json"
# Real tests of so many seconds in all, one after the other, run at each commit. Two workers share them in `make test`.
SAMPLED_SECONDS = 500.0
SEED_LETTERS = 12


RUNNING: pytest.Item | None = None  # set by conftest.py


def only_for_real_tests(what: str) -> None:
    """Called by whoever makes a box or a server. Raises AssertionError in a test that is neither `real` nor `slow`.

    So a test that needs root or a server can't slip into the quick level.
    """
    if RUNNING is not None:
        marked = any(RUNNING.get_closest_marker(mark) for mark in ("real", "slow"))
        assert marked, f"{RUNNING.nodeid} makes {what}: mark it `real` (see tests/README.md)"


class Level(enum.StrEnum):
    """`quick`: pure tests. `default`: pure tests and a share of the real ones. `all`: everything."""

    QUICK = "quick"
    DEFAULT = "default"
    ALL = "all"


@functools.cache
def seed() -> str:
    """What chooses the share: `SEED` of the environment, else the hash of the newest commit, else the same one always."""
    given = os.environ.get("SEED", "").strip()
    if given:
        return given
    asked = ["git", "rev-parse", f"--short={SEED_LETTERS}", "HEAD"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "no-commit"


def recorded(path: Path = DURATIONS) -> dict[str, float]:
    """Seconds of each real test, by its id, as the last `make test-all` measured them."""
    return json.loads(path.read_text()) if path.exists() else {}


def sample(ids: Iterable[str], durations: Mapping[str, float], seed: str, budget_seconds: float) -> set[str]:
    """The tests that a seed chooses until their durations fill the budget. A test without a duration is new: it always runs.

    The order is that of a hash of seed and id, so each test has the same chance at each commit, whatever else there is.
    """
    chosen: set[str] = set()
    spent = 0.0
    for name in sorted(ids, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest()):
        if name not in durations:
            chosen.add(name)
        elif spent < budget_seconds:
            chosen.add(name)
            spent += durations[name]
    return chosen


def select(items: list[pytest.Item], level: Level, seed: str) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """The tests that run at a level, and those that do not."""
    if level is Level.ALL:
        return items, []

    def has(item: pytest.Item, mark: str) -> bool:
        return item.get_closest_marker(mark) is not None

    candidates = [i.nodeid for i in items if has(i, "real") and not has(i, "slow") and not has(i, "always")]
    chosen = sample(candidates, recorded(), seed, SAMPLED_SECONDS) if level is Level.DEFAULT else set[str]()

    def runs(item: pytest.Item) -> bool:
        if has(item, "slow"):
            return False
        if level is Level.QUICK:
            return not has(item, "real") and not has(item, "alone")
        return not has(item, "real") or has(item, "always") or item.nodeid in chosen

    return [i for i in items if runs(i)], [i for i in items if not runs(i)]
