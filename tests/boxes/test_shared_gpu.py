"""`make demo-gpu` on a host without a GPU: two jobs take turns on one device, and neither notices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.patience import FACTOR
from support.tree import ROOT

pytestmark = pytest.mark.real


def test_two_jobs_take_turns_on_one_gpu(tmp_path: Path) -> None:
    out = tmp_path / "told.json"
    words = ["--standin", "--gb", "0.02", "--threads", "2", "--steps", "320", "--first", "20", "--python", "/usr/bin/python3"]
    words += ["--work", str(tmp_path / "work"), "--out", str(out)]
    argv = [sys.executable, "-m", "bench.gpu.demo", *words]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/tests:{ROOT}"}
    done = subprocess.run(
        argv, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300 * FACTOR
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(out.read_text())
    assert told["identical"]
    assert told["same_answers"]
    assert told["moves"] == 3, "once for the notice, twice for the server"
    assert {name: bill["machines"] for name, bill in told["bill"].items()} == {"train": 4, "serve": 2}
    at = {(job, number, text.partition(":")[0]): seconds for seconds, job, number, text in told["moments"]}
    # The server's machine was ordered before the training, which gave way to it, was saved.
    assert at["serve", 1, "launch accepted"] < at["train", 2, "final saved"]
    assert at["serve", 2, "launch accepted"] < at["train", 3, "final saved"]
