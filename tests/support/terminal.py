"""The command line in a real terminal of a given size: what it shows, keys that are pressed, its exit code."""

from __future__ import annotations

import codecs
import fcntl
import os
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

PROGRAM = """
import fcntl, signal, sys, termios
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background have it ignored, a terminal's program never
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from spotsurfer.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")
HOME, LEFT = "\x1b[H", "\x1b[?1049l"  # the cursor goes to the first line; the screen before comes back


class Terminal:
    """One call of `spotsurfer` in a pseudo-terminal, which is its controlling one."""

    def __init__(self, words: Sequence[str], columns: int, lines: int) -> None:
        self.raw, self._decoder = "", codecs.getincrementaldecoder("utf-8")()
        self._ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        hidden = ("COLUMNS", "LINES", "SPOTSURFER_URL", "SPOTSURFER_TOKEN", "SPOTSURFER_CONFIG")
        env = {name: value for name, value in os.environ.items() if name not in hidden}
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**env, "TERM": "xterm", "TZ": "UTC"},
        )
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def until(self, seen: Callable[[str], bool], seconds: float = 30.0) -> str:
        """What it has shown, once that satisfies `seen`."""
        end = time.monotonic() + seconds
        while not seen(self.raw):
            left = end - time.monotonic()
            assert left > 0, f"not seen in {seconds} s: {self.raw[-3000:]!r}"
            if select.select([self._ours], [], [], left)[0]:
                try:
                    self.raw += self._decoder.decode(os.read(self._ours, 65536))
                except OSError:  # it has ended
                    assert seen(self.raw), f"it ended: {self.raw[-3000:]!r}"
        return self.raw

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._ours, keys.encode())

    def end(self, seconds: float = 30.0) -> int:
        """Its exit code, after everything it printed."""
        while True:
            try:
                if not select.select([self._ours], [], [], seconds)[0]:
                    break
                self.raw += self._decoder.decode(os.read(self._ours, 65536))
            except OSError:
                break
        return self._process.wait(seconds)

    def text(self) -> list[str]:
        """The lines that it printed, without what steers the terminal."""
        return CONTROL.sub("", self.raw.replace(LEFT, "\n")).replace("\r", "").splitlines()

    def frames(self) -> list[list[str]]:
        """The screens that it drew, each as its lines."""
        drawn = self.raw.split(HOME)[1:]
        return [[line.rstrip() for line in CONTROL.sub("", frame).replace("\r", "").split("\n")] for frame in drawn]
