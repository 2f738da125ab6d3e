"""Bytes that are no UTF-8 text, as old scripts in Latin-1 have: Slurm takes them, and so do our programs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def strict(environment: dict[str, str]) -> dict[str, str]:
    """With a locale of UTF-8, Python refuses to print such bytes."""
    return {**environment, "PYTHONIOENCODING": "utf-8:strict"}


def call(words: list[str | bytes], folder: Path, environment: dict[str, str]) -> tuple[bytes, bytes]:
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, check=False, timeout=60)
    return done.stdout, done.stderr


def test_a_script_prints_its_bytes(strict: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "old.sh").write_bytes(b'#!/bin/sh\necho \'caf\xe9 \x81\xff\' "$1" "$NAME"\n')
    said = call(["sbatch", "--wait", "-o", "out", "old.sh", b"\xfcber"], tmp_path, {**strict, "NAME": "Ren\udce9"})
    assert said[1] == b"" and (tmp_path / "out").read_bytes() == b"caf\xe9 \x81\xff \xfcber Ren\xe9\n"


def test_one_jobs_comment_does_not_end_everybodys_list(strict: dict[str, str], tmp_path: Path) -> None:
    assert call(["sbatch", b"--comment=caf\xe9", "--wrap", "sleep 20"], tmp_path, strict)[1] == b""
    assert call(["squeue", "-h", "-o", "%k"], tmp_path, strict) == (b"caf\xe9\n", b"")
    shown, trouble = call(["scontrol", "show", "job"], tmp_path, strict)
    assert b"Comment=caf\xe9" in shown and trouble == b""


def test_a_wrong_time_to_settle_is_told_before_anything_is_sent(environment: dict[str, str], tmp_path: Path) -> None:
    said = call(["sbatch", "--wrap", "true"], tmp_path, {**environment, "SPOTSURFER_SETTLE_SECONDS": "soon"})
    assert said == (b"", b"sbatch: error: SPOTSURFER_SETTLE_SECONDS is 'soon', expected seconds, like 1\n")
