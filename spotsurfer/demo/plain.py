"""The undisturbed run of the same command, on this host, beside which the surfed one is held."""

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


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """What the plain run took and made."""

    wall_seconds: float
    cpu_seconds: float
    md5: str


def run(command: Sequence[str], folder: Path, inputs: Sequence[Path], result: str, alive: Callable[[], None]) -> Undisturbed:
    """Run it to its end; `alive` is called twice a second. Raises SpotsurferError when it fails."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in inputs:
        os.link(path, folder / path.name)
    begin = time.monotonic()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            status, usage = _wait(process, alive)
        except BaseException:
            os.killpg(process.pid, 9)
            process.wait()
            raise
    if status != 0:
        raise SpotsurferError(f"the undisturbed run failed with status {status}: see {folder / 'log'}")
    return Undisturbed(time.monotonic() - begin, usage.ru_utime + usage.ru_stime, md5(folder / result))


def _wait(process: subprocess.Popen[bytes], alive: Callable[[], None]) -> tuple[int, resource.struct_rusage]:
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, usage
        alive()
        time.sleep(0.5)


def md5(path: Path) -> str:
    """The MD5 of a file's bytes."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
