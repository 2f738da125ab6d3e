"""How a job's command ended: it counts once it is on disk, after all that was printed. A full disk makes it wait."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from spotsurfer_agent import shimwire
from spotsurfer_agent.spool import Output

RETRY_SECONDS = 1.0


class Ending:
    """The end of one command. Before it came, `code` is None."""

    def __init__(self, folder: Path, output: Output) -> None:
        self._folder, self._output = folder, output
        self.code: int | None = None
        self._retry_at: float | None = None  # the disk did not take it: try again then

    def came(self, code: int) -> None:
        """The command ended with this code, negative for a signal."""
        self.code = code if code >= 0 else 128 - code
        with contextlib.suppress(OSError):  # the disk takes no output: the end waits for that
            self._output.drain()

    def write(self, step: int, cpu_seconds: float) -> bool:
        """Write it down once all output is on disk, with what it used; whether that was done now."""
        if self.code is None or not self._output.is_kept():
            return False
        try:
            told = {"exit_code": self.code, "step": step, "log": self._output.positions(), "cpu_seconds": cpu_seconds}
            shimwire.write_durably(self._folder / shimwire.EXIT, told)
        except OSError:
            self._retry_at = time.monotonic() + RETRY_SECONDS
            return False
        return True

    @property
    def waits(self) -> bool:
        """It is to be tried again."""
        return self._retry_at is not None

    def is_due(self) -> bool:
        """Whether it is to be tried again now; said once."""
        if self._retry_at is None or time.monotonic() < self._retry_at:
            return False
        self._retry_at = None
        return True
