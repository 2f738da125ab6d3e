"""`make` on hosts that are not ready, and tests that may not be skipped."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.tree import ROOT

HOST = ROOT / "scripts" / "host.sh"


def _host(folder: Path, **programs: str) -> subprocess.CompletedProcess[str]:
    """Runs the script where only these programs exist; every call of apt-get is written down."""
    for name, body in programs.items():
        path = folder / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    environment = {"PATH": str(folder)}
    if "python3" in programs:
        environment["SYSTEM_PYTHON"] = str(folder / "python3")
    return subprocess.run(["/bin/sh", HOST], env=environment, capture_output=True, text=True, check=False)


def test_other_systems_are_told_what_is_missing(tmp_path: Path) -> None:
    done = _host(tmp_path, ip="", nft="")
    assert done.returncode == 1
    assert "not Debian" in done.stderr
    assert "unshare" in done.stderr
    assert " nft" not in done.stderr


def test_packages_are_named_to_who_is_not_root(tmp_path: Path) -> None:
    done = _host(tmp_path, apt_get="echo called >>$0.log", dpkg_query='[ "$4" = tini ] || echo installed', id="echo 1000")
    assert done.returncode == 1
    assert "apt-get install tini" in done.stderr
    assert not (tmp_path / "apt-get.log").exists()


def test_ready_host_is_left_alone(tmp_path: Path) -> None:
    done = _host(
        tmp_path,
        apt_get="echo called >>$0.log",
        dpkg_query="echo installed",
        id="echo 1000",
        python3="",
        docker_registry="",
        sshd="",
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "apt-get.log").exists()


def test_old_python_is_refused(tmp_path: Path) -> None:
    done = _host(tmp_path, apt_get="", dpkg_query="echo installed", python3="[ $1 = --version ] && echo Python 3.9.2")
    assert done.returncode == 1
    assert "is Python 3.9.2, and Python 3.11 or newer is needed" in done.stderr


@pytest.mark.parametrize(("mark", "word"), [("boxes", "1 failed"), ("slow", "1 skipped")])
def test_only_tests_in_boxes_fail_when_skipped(tmp_path: Path, mark: str, word: str) -> None:
    (tmp_path / "test_one.py").write_text(
        f"import pytest\n@pytest.mark.{mark}\ndef test_skipped():\n    pytest.skip('no root here')\n"
    )
    done = _pytest(tmp_path)
    assert word in done.stdout
    assert "no root here" in done.stdout


def test_boxes_come_last(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(
        "import pytest\n@pytest.mark.real\ndef test_slow_one(): pass\ndef test_quick_one(): pass\n"
    )
    out = _pytest(tmp_path, "-v").stdout
    assert out.index("test_quick_one") < out.index("test_slow_one")


def _pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    options = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-p", "conftest", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *arguments, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
