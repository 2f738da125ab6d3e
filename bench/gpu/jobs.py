"""The jobs that are played, as parts of a plan: command, files that lie beside it, environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[2] / "tests/support"
BUILT = Path("/opt/cuda-programs")
EXIT_CODE = 7  # of both programs below
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_VISIBLE_DEVICES")
Job = dict[str, Any]


def environment() -> dict[str, str]:
    """What a program needs of this process's environment to find the GPU and its libraries."""
    return {name: os.environ[name] for name in PASSED_ON if name in os.environ}


def standin(size: int, turns: int, mode: str = "plain") -> Job:
    """The tests' program, whose GPU is none; `size` in bytes."""
    program = TESTS / "cuda_standin.py"
    words = ["/usr/bin/python3", program.name, "program", str(size), str(turns), mode]
    return {"command": words, "files": [str(program)], "environment": {}}


def compiled(size: int, turns: int, mode: str = "plain") -> Job:
    """The tests' CUDA C++ program. Raises what `built` raises."""
    return built(TESTS / "cuda_program.cu", [str(size), str(turns), mode])


def built(source: Path, words: list[str]) -> Job:
    """A CUDA C++ program, built here once by nvcc. Raises OSError, subprocess.CalledProcessError."""
    program = BUILT / source.stem
    if not program.exists():
        BUILT.mkdir(exist_ok=True)
        subprocess.run(["nvcc", "-O2", "-arch=native", "-o", str(program), str(source)], check=True)
    return {"command": [f"./{program.name}", *words], "files": [str(program)], "environment": {}}
