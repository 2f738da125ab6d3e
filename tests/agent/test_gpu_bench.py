"""What is played on GPU machines, with a stand-in for the driver: from notice to same result, and a fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.runtime import unpacked_runtime
from support.tree import ROOT


@pytest.mark.real
def test_a_job_on_a_gpu_goes_on_in_a_new_box_after_a_notice(tmp_path: Path) -> None:
    words = [
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
    told, said = played(tmp_path, "bench.gpu.notice", *words)
    assert told["identical"]
    assert told["timeline"][0][1].startswith("notice")
    assert 0 < told["stood_still_seconds"] <= told["notice_to_next_step_seconds"] + 1
    assert "notice to next training step" in said


@pytest.mark.real
def test_a_fault_leaves_the_job_to_its_end(tmp_path: Path) -> None:
    words = ["too little memory", "undisturbed", "--gb", "0.02", "--turns", "100", "--runtime", str(unpacked_runtime())]
    (short, undisturbed), _ = played(tmp_path, "bench.gpu.faults", *words)
    assert "ask for a machine with more memory" in short["told"][0]
    assert short["end"] == undisturbed["end"]


def played(folder: Path, module: str, *words: str) -> tuple[Any, str]:
    """What it wrote down, and what it printed."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/agent:{ROOT}/tests:{ROOT}"}
    places = ["--standin", "--work", str(folder / "work"), "--out", str(folder / "told.json")]
    argv = [sys.executable, "-m", module, *words, *places]
    done = subprocess.run(argv, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "told.json").read_text()), done.stdout


@pytest.mark.real
def test_the_benchmark_measures_the_same_by_hand(tmp_path: Path) -> None:
    words = [
        "pytorch:0.02",
        "--standin",
        "--by-hand",
        "plain,again",
        "--steps",
        "60",
        "--first",
        "5",
        "--between",
        "5",
    ]
    words += ["--saves", "live,final", "--threads", "2", "--runtime", str(unpacked_runtime())]
    words += ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "rows.json")]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}/agent:{ROOT}/tests:{ROOT}"}
    argv = [sys.executable, "-m", "bench.gpu", *words]
    done = subprocess.run(argv, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert row["identical"]
    assert [v["variant"] for v in row["by_hand"]["variants"]] == ["plain", "again"]
    assert row["by_hand"]["dump_seconds"] > 0 < row["durable_ratio"]
    assert row["device"] == "a stand-in, no GPU"
