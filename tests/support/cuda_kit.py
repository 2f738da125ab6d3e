"""A driver to ask, and programs that use it: the stand-in, or where SPOTSURFER_TEST_CUDA=real this machine's GPU."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from spotsurfer_agent.gpu.driver_port import Driver
from support import cuda_standin
from support.tree import ROOT

REAL = os.environ.get("SPOTSURFER_TEST_CUDA") == "real"
START_SECONDS = 60.0


@functools.cache
def driver() -> Driver:
    if REAL:
        from spotsurfer_agent.gpu.nvidia_driver import Binding

        return Binding()
    return cuda_standin.StandIn()


def sidecar_argv() -> list[str]:
    return [sys.executable, *(("-m", "spotsurfer_agent.gpu.nvidia_driver") if REAL else (cuda_standin.__file__,))]


@functools.cache
def _built() -> str:
    """The program of `cuda_program.cu`."""
    path = str(Path(tempfile.mkdtemp(prefix="cuda-"), "program"))
    source = ROOT / "tests/support/cuda_program.cu"
    subprocess.run(["nvcc", "-O2", "-arch=native", "-o", path, str(source)], check=True)
    return path


class Program:
    """A program on a GPU. Modes: plain, managed, endless, fork, stranger."""

    def __init__(self, size: int = 16 << 20, mode: str = "plain", turns: int = 10**6) -> None:
        argv = [_built()] if REAL else [sys.executable, str(Path(cuda_standin.__file__)), "program"]
        with tempfile.NamedTemporaryFile(prefix="cuda-out-", delete=False) as out:
            self._out = Path(out.name)
            self._process = subprocess.Popen([*argv, str(size), str(turns), mode], stdout=out, stdin=subprocess.DEVNULL)
        self.pid = self._process.pid
        self.wait("turn 0")

    def text(self) -> str:
        return self._out.read_text()

    def wait(self, what: str, seconds: float = START_SECONDS) -> None:
        end = time.monotonic() + seconds
        while what not in self.text():
            assert self._process.poll() in (None, 7), self.text()
            assert time.monotonic() < end, (what, self.text()[-500:])
            time.sleep(0.01)

    def goes_on(self, seconds: float = 5.0) -> bool:
        before = self.text()
        end = time.monotonic() + seconds
        while self.text() == before and time.monotonic() < end:
            time.sleep(0.02)
        return self.text() != before

    def child(self) -> int:
        return int(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()[0])

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        self._out.unlink(missing_ok=True)
        for path in cuda_standin.CARDS.glob(f"*mem-{self.pid}-*"):
            path.unlink()
        shutil.rmtree(cuda_standin.SHARED / f"cuda-{self.pid}", ignore_errors=True)
