"""The levels run what tests/README.md says, and each real test has its turn."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import levels
from support.tree import ROOT

TESTS = """\
import pytest
def test_pure(): pass
@pytest.mark.slow
def test_slow(): pass
@pytest.mark.alone
def test_timed(): pass
@pytest.mark.real
def test_real(): pass
@pytest.mark.real
@pytest.mark.slow
def test_real_slow(): pass
@pytest.mark.real
@pytest.mark.always
def test_always(): pass
def test_last(): pass
"""


def _ran(folder: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_one.py").write_text(tests)
    project = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-p", "conftest", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-v", *project, *options, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "SEED": "fixed"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def _names(output: str) -> list[str]:
    return re.findall(r"::test_(\w+) (?:PASSED|FAILED|SKIPPED)", output)


@pytest.mark.parametrize(
    ("level", "names"),
    [
        ("quick", ["pure", "last"]),
        ("default", ["pure", "timed", "last", "real", "always"]),
        ("all", ["pure", "slow", "timed", "last", "real", "real_slow", "always"]),
    ],
)
def test_a_level_runs_these_and_real_tests_come_last(tmp_path: Path, level: str, names: list[str]) -> None:
    done = _ran(tmp_path, TESTS, "--level", level)
    assert done.returncode == 0, done.stdout
    assert _names(done.stdout) == names
    assert ("SEED=fixed chooses them again" in done.stdout) == (level == "default")


def test_a_real_test_may_not_be_skipped(tmp_path: Path) -> None:
    done = _ran(
        tmp_path,
        "import pytest\n"
        "@pytest.mark.real\ndef test_real(): pytest.skip('no root here')\n"
        "@pytest.mark.slow\ndef test_slow(): pytest.skip('not now')\n",
    )
    assert "1 failed, 1 skipped" in done.stdout
    assert "may not be skipped" in done.stdout and "no root here" in done.stdout


@pytest.mark.parametrize(("mark", "passes"), [("always", False), ("real", True), ("slow", True)])
def test_who_makes_something_real_is_marked(tmp_path: Path, mark: str, passes: bool) -> None:
    lines = ["import pytest", "from support.levels import only_for_real_tests"]
    lines += [f"@pytest.mark.{mark}", "def test_it(): only_for_real_tests('boxes')"]
    done = _ran(tmp_path, "\n".join(lines) + "\n")
    assert ("1 passed" in done.stdout) == passes, done.stdout
    assert ("test_it makes boxes: mark it `real`" in done.stdout) != passes


def test_durations_of_real_tests_are_recorded_whoever_ran_them(tmp_path: Path) -> None:
    file = tmp_path / "durations.json"
    file.write_text('{"earlier": 3.0}')
    sleeps = "import pytest, time\n@pytest.mark.real\ndef test_real(): time.sleep(0.3)\ndef test_pure(): pass\n"
    done = _ran(tmp_path, sleeps, "-n", "2", f"--record={file}")
    assert done.returncode == 0, done.stdout
    found = json.loads(file.read_text())
    (name,) = set(found) - {"earlier"}
    assert name.endswith("::test_real")
    assert found["earlier"] == 3.0
    assert 0.3 <= found[name] < 5


# ---------------------------------------------------------------- shares

IDS = [f"tests/test_{n}.py::test" for n in range(400)]
DURATIONS = {name: 1.0 + 20.0 * (n % 7 == 0) for n, name in enumerate(IDS)}


def test_a_share_fills_the_budget_and_the_same_seed_chooses_it_again() -> None:
    chosen = levels.sample(IDS, DURATIONS, "a", 300)
    assert 300 <= sum(DURATIONS[name] for name in chosen) < 300 + max(DURATIONS.values())
    assert levels.sample(reversed(IDS), DURATIONS, "a", 300) == chosen
    assert levels.sample(IDS, DURATIONS, "b", 300) != chosen


def test_the_shares_of_a_week_of_commits_cover_everything() -> None:
    """Sixty commits, each with a quarter of the time that all tests take: none is left out, the long ones neither."""
    quarter = sum(DURATIONS.values()) / 4
    shares = [levels.sample(IDS, DURATIONS, f"{n:012x}", quarter) for n in range(60)]
    assert set().union(*shares) == set(IDS)


def test_a_test_that_nobody_has_timed_always_runs() -> None:
    assert "new" in levels.sample([*IDS, "new"], DURATIONS, "a", 10)


def test_the_seed_is_the_newest_commit_unless_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEED", " abc ")
    assert levels.seed.__wrapped__() == "abc"
    monkeypatch.delenv("SEED")
    assert re.fullmatch(r"[0-9a-f]{12,}|no-commit", levels.seed.__wrapped__())
