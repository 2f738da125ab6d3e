"""The undisturbed run of the same command, on this host, at the same time: what differs is only the surfing."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spotsurfer.model.errors import SpotsurferError

LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """What the plain run took and made."""

    wall_seconds: float
    cpu_seconds: float
    md5: str


class PlainRun:
    """The command as a process of this host; ended with `stop` whatever happens."""

    def __init__(self, command: Sequence[str], folder: Path, inputs: Sequence[Path], result: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for path in inputs:
            os.link(path, folder / path.name)
        self._folder = folder
        self._result = folder / result
        self._begin = time.monotonic()
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._ended: tuple[float, resource.struct_rusage] | None = None

    def poll(self) -> bool:
        """Whether it has ended; to be called often, as its time is taken here. Raises SpotsurferError when it failed."""
        if self._ended is None:
            pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
            if pid:
                self._process.returncode = os.waitstatus_to_exitcode(status)
                self._ended = (time.monotonic() - self._begin, usage)
        if self._ended is not None and self._process.returncode != 0:
            log = self._folder / "log"
            raise SpotsurferError(f"the undisturbed run failed with status {self._process.returncode}: see {log}")
        return self._ended is not None

    def wait(self, tell: Callable[[str], None]) -> Undisturbed:
        """Its figures, when it has ended."""
        if not self.poll():
            tell("waiting for the undisturbed run to end")
        while not self.poll():
            time.sleep(LOOK_SECONDS)
        assert self._ended is not None
        wall, usage = self._ended
        return Undisturbed(wall, usage.ru_utime + usage.ru_stime, md5(self._result))

    def stop(self) -> None:
        """End it, if it has not."""
        if self._process.returncode is None:
            os.killpg(self._process.pid, 9)
            self._process.wait()


def md5(path: Path) -> str:
    """The MD5 of a file's bytes."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
