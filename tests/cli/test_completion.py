"""Completion in a real bash, by the script that `--show-completion` prints."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.fake_service import FakeService

Complete = Callable[[str], list[str]]
ASK = """
source "$1"
COMP_WORDS=($2); [[ $2 == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_spotsurfer_completion spotsurfer
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def complete(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Complete:
    """What bash offers for a line; it must not print anything else."""
    program, script = tmp_path / "bin" / "spotsurfer", tmp_path / "completion.sh"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m spotsurfer "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SPOTSURFER_CONTROLLER__DATA_DIR", str(folder))
    shown = subprocess.run(
        ["bash", "-c", "spotsurfer --show-completion; :"], capture_output=True, text=True, check=True, timeout=60
    )
    script.write_text(shown.stdout)

    def ask(line: str) -> list[str]:
        words = ["bash", "--norc", "-c", ASK, "bash", str(script), line]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60, cwd=folder)
        assert done.stderr == ""
        return [x for x in done.stdout.splitlines() if x]

    return ask


def test_commands_and_options(complete: Complete) -> None:
    assert complete("spotsurfer che") == ["checkpoint", "checkpoints"]
    assert complete("spotsurfer loc") == ["local"]
    assert complete("spotsurfer store ") == ["check", "stats", "gc"]
    assert complete("spotsurfer local rec") == ["reclaim"]
    assert complete("spotsurfer list --op") == ["--open"]
    assert "--version" in complete("spotsurfer --v")


def test_jobs_of_the_running_controller(job: str, controller: FakeService, complete: Complete) -> None:
    assert complete("spotsurfer show ") == [job]
    assert complete("spotsurfer cancel as") == [job]
    assert complete("spotsurfer cancel other") == []


def test_trouble_is_never_told_to_the_shell(complete: Complete, folder: Path) -> None:
    assert complete("spotsurfer show ") == [], "no controller answers"
    (folder / "spotsurfer.toml").write_text("this is no configuration")
    assert complete("spotsurfer show ") == []
    assert complete("spotsurfer --config absent.toml cancel ") == []
