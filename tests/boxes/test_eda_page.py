"""docs/eda-in-ten-minutes.md, as it stands: a shell runs all of its blocks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from spotsurfer_providers.local import manual_control
from support import levels
from support.tree import ROOT

PAGE = ROOT / "docs" / "eda-in-ten-minutes.md"
SECONDS = 600  # as the page says


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.timeout(SECONDS + 60)
def test_the_page_does_what_it_says(tmp_path: Path) -> None:
    levels.only_for_real_tests("boxes")
    program = tmp_path / "spotsurfer"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m spotsurfer "$@"\n')
    program.chmod(0o755)
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    script = "set -e\n" + "".join(blocks).replace("/var/tmp/eda", str(tmp_path / "data"))
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SPOTSURFER_RUNTIME__PATH": str(ROOT / "build/runtime"),
    }
    shell = subprocess.Popen(
        ["bash", "-c", script], env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = shell.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGTERM)
        said, _ = shell.communicate(timeout=30)
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
        manual_control.clean(tmp_path / "data", end_living=True)
    said = " ".join(said.split())  # `why` breaks its lines
    licences = (tmp_path / "eda/licd.log").read_text()
    assert shell.returncode == 0, f"{said[-3000:]}\n{licences[-2000:]}"
    assert all(f"task {task} is right" in said for task in (1, 2))
    assert all(f"seed {task} after 5000000 cycles: " in said for task in range(1, 7))
    assert "It waits for 1 of 2 licences sim: held by" in said
    assert "no licence was asked for in vain" in said
    assert max(int(n) for n in re.findall(r"(\d+) out", licences)) == 2
    assert re.search(r"return sim-\w+-\d notice: yes", licences), licences
    assert re.search(r"take sim-\w+-\d restore: yes", licences), licences
    assert "nightly" in said.rpartition("no licence was asked for in vain")[2], "the bill"
