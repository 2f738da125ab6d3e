"""The list of planted faults fits the code, and the runner tells a fault that is noticed from one that is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from planted import run, tree
from planted.fault import Fault, Unfit, check, load
from support.tree import ROOT

TOY = {
    **{f"{folder}/{package}/__init__.py": "" for package, folder in tree.PACKAGES.items()},
    "spotsurfer/lease.py": "SECONDS = 60\nMARGIN = 15\n",
    "conftest.py": "def pytest_addoption(parser):\n    parser.addoption('--level')\n",
    "test_near.py": "from spotsurfer import lease\ndef test_seconds():\n    assert lease.SECONDS == 60\n",
    "test_far.py": (
        "import subprocess, sys\n"
        "def test_another_process_runs_the_same_code():\n"
        "    code = 'from spotsurfer import lease; print(lease.SECONDS + lease.MARGIN)'\n"
        "    assert subprocess.check_output([sys.executable, '-c', code], env={}, cwd='/') in (b'75\\n', b'76\\n')\n"
    ),
    ".gitignore": "build/\n__pycache__/\n",
}


def _fault(name: str, old: str, new: str, near: str = "test_near.py") -> str:
    return f'["{name}"]\nbreaks = "."\nfile = "spotsurfer/lease.py"\nold = "{old}"\nnew = "{new}"\nnear = ["{near}"]\n'


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that no commit has seen yet."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # its tests start four times as fast
    for name, text in TOY.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    return tmp_path


def _run(toy: Path, capsys: pytest.CaptureFixture[str], rows: str, *words: str) -> tuple[int, str, str]:
    (toy / "faults.toml").write_text(rows)
    code = run.main(["--faults", str(toy / "faults.toml"), "--checkout", str(toy), *words])
    said = capsys.readouterr()
    return code, said.out, said.err


# ---------------------------------------------------------------- the list


@pytest.mark.parametrize("fault", load(), ids=lambda f: f.name)
def test_each_fault_fits_the_code_and_leaves_it_python(fault: Fault) -> None:
    check([fault], ROOT)
    compile(fault.planted((ROOT / fault.file).read_text()), fault.file, "exec", dont_inherit=True)


def test_faults_are_distinct() -> None:
    changes = [(f.file, f.old, f.new) for f in load()]
    assert len(changes) == len(set(changes))
    assert sum(f.level == "quick" for f in load()) >= 20


@pytest.mark.parametrize("text", ["", "a = 1\na = 1\n"])
def test_a_text_that_is_not_there_once_is_said(text: str) -> None:
    fault = Fault("f", ".", "a.py", "a = 1", "a = 2", ())
    with pytest.raises(Unfit, match=rf"^f: its old text is in a\.py {text.count('a')} times"):
        fault.planted(text)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('breaks = "."', "f: a key is missing or unknown"),
        (_fault("f", "60", "61").partition("\n")[2] + 'level = "slow"', "f: level 'slow' is not one of quick, default"),
        (_fault("f", "61", "62").partition("\n")[2], "f: its old text is in spotsurfer/lease.py 0 times"),
        (_fault("f", "60", "61", "gone.py").partition("\n")[2], "f: gone.py does not exist"),
        (_fault("f", "60", "61", "test_near.py::test_gone").partition("\n")[2], "f: test_near.py::test_gone does not exist"),
        ("breaks = ", "Invalid value"),
    ],
)
def test_a_row_that_does_not_fit_is_said_before_anything_runs(
    toy: Path, capsys: pytest.CaptureFixture[str], row: str, said: str
) -> None:
    code, out, err = _run(toy, capsys, _fault("first", "60", "61") + '["f"]\n' + row)
    assert (code, out) == (2, "")
    assert said in err
    assert not (toy / "build").exists()


# ---------------------------------------------------------------- the runner


def test_what_is_noticed_and_what_is_not(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By a near test, by another one, by nobody; and the project stays as it was."""
    rows = (
        _fault("near", "60", "61")
        + _fault("far", "MARGIN = 15", "MARGIN = 17")
        + _fault("missed", "MARGIN = 15", "MARGIN = 16")
    )
    code, out, err = _run(toy, capsys, rows, "--json", "--page", str(toy / "page.md"))
    assert code == 1
    found = {row["name"]: (row["test"], row["near"]) for row in json.loads(out)}
    assert found == {
        "near": ("test_near.py::test_seconds", True),
        "far": ("test_far.py::test_another_process_runs_the_same_code", False),
        "missed": (None, False),
    }
    assert "2 of 3 planted faults were noticed, 2 of them by quick tests; nobody noticed: missed" in err
    assert "| missed | . | quick | **nobody noticed** |" in (toy / "page.md").read_text()
    assert (toy / "spotsurfer" / "lease.py").read_text() == TOY["spotsurfer/lease.py"]
    assert [p.name for p in (toy / "build" / "planted" / "quick").iterdir()] == ["unchanged"]


def test_a_copy_that_would_run_other_code_than_its_own_is_refused(toy: Path) -> None:
    one, two = toy / "build" / "one", toy / "build" / "two"
    tree.copy_checkout(toy, one, whole=False)
    tree.copy_copy(one, two, whole=False)
    for copy in (one, two):
        tree.prove(copy)
    (theirs,), (ours,) = (list(copy.glob(".venv/lib/*/site-packages/copy.pth")) for copy in (one, two))
    ours.write_text(theirs.read_text())
    with pytest.raises(tree.Foreign, match="runs other code than its own"):
        tree.prove(two)


def test_only_one(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = _fault("near", "60", "61") + _fault("missed", "MARGIN = 15", "MARGIN = 16")
    code, out, _ = _run(toy, capsys, rows, "--only", "near")
    assert code == 0
    assert "missed" not in out
    for words in (["another"], ["near", "--page", "page.md"]):
        with pytest.raises(SystemExit):
            _run(toy, capsys, rows, "--only", *words)


def test_tests_that_fail_without_a_fault_say_nothing_about_faults(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (toy / "test_near.py").write_text("def test_bad(): assert False\n")
    code, out, err = _run(toy, capsys, _fault("near", "60", "61"))
    assert (code, out) == (2, "")
    assert "test_near.py::test_bad fails without any fault" in err


def test_tests_that_the_level_leaves_out_are_named(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (toy / "test_near.py").write_text("")
    code, _, err = _run(toy, capsys, _fault("near", "60", "61"))
    assert code == 2
    assert "level quick leaves out test_near.py" in err


def test_a_fault_that_no_test_could_import_is_none(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _run(toy, capsys, _fault("typo", "SECONDS = 60", "SECONDS = sixty"))
    assert (code, out) == (2, "")
    assert "pytest ended with 2" in err


def test_the_list_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--list"]) == 0
    assert "fencing off: " in capsys.readouterr().out
    done = subprocess.run(
        [sys.executable, "-m", "planted.run", "--list", "--json"],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        check=True,
    )
    assert [row["name"] for row in json.loads(done.stdout)] == [f.name for f in load()]
