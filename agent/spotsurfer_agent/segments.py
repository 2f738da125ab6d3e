"""One output stream of the job on the machine's disk: files named by the absolute offset of their first byte.

They are written by a thread. A disk that is busy with what a save made it write, or a file system that holds up everybody who
writes while gigabytes go to the disk, must not hold up the job at its next line.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

SEGMENT_BYTES = 64 << 20
GATHER_BYTES, GATHER_SECONDS = 1 << 16, 0.02  # so much, or so long, is written at once: waking costs more than writing
RETRY_SECONDS = 1.0


class Segments:
    """The writing side. `told` becomes readable when everything was written, or the disk refuses, after `tell`."""

    def __init__(self, folder: Path, stream: str, position: int, gather_seconds: float = GATHER_SECONDS) -> None:
        self._folder, self._stream, self._position, self._gather = folder, stream, position, gather_seconds
        self._waiting: list[bytes] = []
        self._bytes = 0  # handed in and not on disk yet
        self._file, self._room = -1, 0
        self._change = threading.Condition()
        self._closed = self._tells = False
        self.trouble: OSError | None = None  # why the disk takes nothing just now; it is tried again
        self.told = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        threading.Thread(target=self._run, name=f"output {stream}", daemon=True).start()

    @property
    def waiting_bytes(self) -> int:
        """Handed in and not on disk yet."""
        return self._bytes

    def add(self, data: bytes) -> None:
        """Hand in what comes next."""
        with self._change:
            self._waiting.append(data)
            self._bytes += len(data)
            if self._bytes == len(data) or self._bytes >= GATHER_BYTES:
                self._change.notify()

    def amend(self, data: bytes) -> bool:
        """Put this in place of what was handed in last, which is as long; False where that is on its way to the disk."""
        with self._change:
            if not self._waiting:
                return False
            self._waiting[-1] = data
            return True

    def tell(self) -> None:
        """Make `told` readable once all that was handed in is on disk, or can't be put there."""
        with self._change:
            self._tells = True
            self._change.notify()

    def close(self) -> None:
        """Give up what is not written yet; nobody may look at `told` any more. Does not wait for a disk that hangs."""
        with self._change:
            self._closed = True
            self._change.notify()

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while (data := self._next()) is not None:
            self._write(memoryview(data))
        for fd in (self._file, self.told):
            if fd >= 0:
                os.close(fd)

    def _next(self) -> bytes | None:
        with self._change:
            while not self._closed and not self._waiting:
                self._say()
                self._change.wait()
            self._change.wait_for(lambda: self._closed or self._tells or self._bytes >= GATHER_BYTES, self._gather)
            data, self._waiting = b"".join(self._waiting), []
            return None if self._closed else data

    def _write(self, data: memoryview) -> None:
        while data and not self._closed:
            try:
                if self._room <= 0:
                    self._next_file()
                written = os.write(self._file, data[: self._room])
            except OSError as e:
                self._refused(e)
                continue
            data = data[written:]
            self._room -= written
            with self._change:
                self.trouble = None
                self._position += written
                self._bytes -= written

    def _refused(self, e: OSError) -> None:
        with self._change:
            self.trouble = e
            self._say()
            self._change.wait_for(lambda: self._closed, RETRY_SECONDS)

    def _say(self) -> None:
        if self._tells:
            self._tells = False
            os.eventfd_write(self.told, 1)

    def _next_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        name = self._folder / f"{self._stream}-{self._position:016d}"
        self._file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._room = SEGMENT_BYTES


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
    """Forget everything that was kept so far."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
