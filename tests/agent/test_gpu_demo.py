"""`make demo-gpu` with the stand-in for the driver: the whole road, from the notice to the same result in another box."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.runtime import unpacked_runtime
from support.tree import ROOT


@pytest.mark.boxes
def test_a_job_on_a_gpu_goes_on_in_a_new_box_after_a_notice(tmp_path: Path) -> None:
    words = [
        "--standin",
        "--gb",
        "0.02",
        "--steps",
        "150",
        "--first",
        "20",
        "--threads",
        "2",
        "--runtime",
        str(unpacked_runtime()),
    ]
    words += ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "told.json")]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/agent:{ROOT}/tests:{ROOT}"}
    argv = [sys.executable, "-m", "bench.gpu.demo", *words]
    done = subprocess.run(argv, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["identical"]
    assert [what.partition(":")[0] for _, what in told["timeline"]][0] == "notice"
    assert 0 < told["stood_still_seconds"] <= told["notice_to_next_step_seconds"] + 1
    assert "notice to next training step" in done.stdout
