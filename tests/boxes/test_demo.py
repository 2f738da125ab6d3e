"""The demonstration leaves nothing when it is broken off."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from spotsurfer_providers.local import manual_control
from support.boxes import Yard
from support.tree import ROOT

pytestmark = pytest.mark.real
START_SECONDS = 180
INTERRUPTED = 130


def test_ctrl_c_in_the_middle(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    reads = ROOT / "build" / "demo" / "reads"
    if reads.is_dir():  # drawn by an earlier demonstration: they are always the same
        folder.mkdir()
        (folder / "reads").symlink_to(reads)
    # A shell starts what runs in its background with this signal ignored, and that is inherited.
    words = ["env", "--default-signal=INT", sys.executable, "-m", "spotsurfer", "demo", "--dir", str(folder)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        data = folder / "surf" / "data"
        until = time.monotonic() + START_SECONDS
        while not (data.exists() and manual_control.living(data)):
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < until
            time.sleep(0.2)
        time.sleep(5)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == INTERRUPTED, (tmp_path / "log").read_text()
    assert manual_control.living(data) == []
    Yard(data, None).assert_clean()  # type: ignore[arg-type]
    mine = [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in _bytes(p)]
    assert mine == []


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
