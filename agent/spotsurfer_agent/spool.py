"""One output stream of the job: a pipe that the shim reads into files named by the absolute offset of their first byte."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

SEGMENT_BYTES = 64 << 20
READ_BYTES = 1 << 16
NAMES = ("out", "err")


class Spool:
    """The reading end. `position` counts bytes of the stream since the job's beginning, over all machines."""

    def __init__(self, folder: Path, stream: str, position: int) -> None:
        self.stream, self.position = stream, position
        self._folder, self._file, self._room = folder, -1, 0
        self._kept = b""  # read from the pipe, not yet on disk
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        self.name = str(Path(f"/proc/self/fd/{self.write_fd}").readlink())  # what CRIU calls the pipe
        self.ended = False

    def close_writer(self) -> None:
        """Let go of the end that the job holds, so that the stream ends when the job does."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def drain(self) -> None:
        """Put all that is in the pipe now on disk. Raises OSError where the disk takes no more; nothing is lost then."""
        while True:
            self._store()
            try:
                data = os.read(self.read_fd, READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                self.ended = True
                return
            self._kept = data

    def _store(self) -> None:
        while self._kept:
            if self._room <= 0:
                self._next_file()
            written = os.write(self._file, self._kept[: self._room])
            self._kept = self._kept[written:]
            self._room -= written
            self.position += written

    def _next_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        name = self._folder / f"{self.stream}-{self.position:016d}"
        self._file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._room = SEGMENT_BYTES

    def close(self) -> None:
        """Give everything back."""
        self.close_writer()
        for fd in (self.read_fd, self._file):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self.read_fd = self._file = -1


def length(folder: Path, stream: str) -> int:
    """Absolute bytes of a stream on disk; 0 where it has none."""
    ends = [int(p.name.rpartition("-")[2]) + p.stat().st_size for p in folder.glob(f"{stream}-*")]
    return max(ends, default=0)


def read(folder: Path, stream: str, offset: int, limit: int) -> bytes:
    """At most `limit` bytes from an absolute offset; empty when there is nothing (any more, or yet)."""
    for path in sorted(folder.glob(f"{stream}-*"), reverse=True):
        first = int(path.name.rpartition("-")[2])
        if first <= offset:
            with path.open("rb") as f:
                f.seek(offset - first)
                return f.read(limit)
    return b""


def clear(folder: Path) -> None:
    """Forget everything spooled so far."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
