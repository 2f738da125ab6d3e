"""A host that can't: one sentence, its own exit code, nothing half-made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.tree import ROOT

pytestmark = pytest.mark.real
NOBODY = 65534


def serve(data: Path, *prefix: str) -> subprocess.CompletedProcess[str]:
    """`spotsurfer serve --once` on a data folder, behind a command like nsenter."""
    environment = {**os.environ, "SPOTSURFER_CONTROLLER__DATA_DIR": str(data)}
    environment["SPOTSURFER_RUNTIME__PATH"] = str(ROOT / "build" / "runtime")
    words = [*prefix, sys.executable, "-m", "spotsurfer", "serve", "--once"]
    return subprocess.run(words, env=environment, cwd="/", capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    done = serve(small_disk / "data")
    assert done.returncode == 8, done.stderr
    assert "no room" in done.stderr or "no space" in done.stderr or "full" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_no_root(tmp_path: Path) -> None:
    """In a user namespace that maps nobody to nobody: the files are readable, root is not there."""
    data = tmp_path / "data"
    data.mkdir(0o700)
    shutil.chown(data, NOBODY, NOBODY)
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    # The interpreter of the tests may lie in a folder that only root may enter: keep the right to read, drop all else.
    drop = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
    keep = ["--inh-caps", "-all,+dac_read_search", "--ambient-caps", "-all,+dac_read_search"]
    done = serve(data, *drop, *keep)
    assert done.returncode == 6, done.stderr
    assert "root" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_no_namespaces(tmp_path: Path) -> None:
    """Root without the right to make boxes, as in many containers."""
    done = serve(tmp_path / "data", "setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin")
    assert done.returncode == 7, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
