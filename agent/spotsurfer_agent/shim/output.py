"""The job's output from its pipes to files on the machine's disk, with the record of times."""

from __future__ import annotations

import contextlib
import datetime
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from spotsurfer_wire import clock
from spotsurfer_wire.log_pieces import ROW_BYTES, TIMES, Row

# ---- Segments: one output stream on the machine's disk, in files named by the absolute offset of their first byte.
#
# A thread writes them. A disk that is busy with what a save made it write, or a file system that holds up everybody who writes
# while gigabytes go to the disk, must not hold up the job at its next line.

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
        """Put this in place of what was handed in last, which is as long; False if that is on its way to the disk."""
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


def read_segments(folder: Path, stream: str, offset: int, limit: int) -> bytes:
    """At most `limit` bytes from an absolute offset; empty when there is nothing (any more, or yet)."""
    for path in sorted(folder.glob(f"{stream}-*"), reverse=True):
        first = int(path.name.rpartition("-")[2])
        if first <= offset:
            with path.open("rb") as f:
                f.seek(offset - first)
                return f.read(limit)
    return b""


def written_bytes(folder: Path, streams: Sequence[str] = ("out", "err")) -> int:
    """How much of these streams is on the machine's disk since the job's beginning, over all machines."""
    newest = {path.name.rpartition("-")[0]: path for path in sorted(folder.glob("*-*"))}
    return sum(int(p.name.rpartition("-")[2]) + p.stat().st_size for s in streams if (p := newest.get(s)) is not None)


def clear_segments(folder: Path) -> None:
    """Forget everything that was kept so far."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        path.unlink()


# ---- Times: the record of when a job printed what, as it is written

TIMES_GATHER_SECONDS = 0.1  # a stream that grows alone gets one row in so long


ROWS_A_SECOND = 1000  # more are not kept: 2 GB a day of a job that does nothing but change between its streams


class Times:
    """The writing side. `position` counts bytes of this stream since the job's beginning."""

    def __init__(
        self, folder: Path, position: int, out: int, err: int, now: Callable[[], datetime.datetime] = clock.utc
    ) -> None:
        """What was printed before is `out` and `err` bytes; if nobody kept rows of it, the first row shows that."""
        self.position, self._now = position, now
        self.disk = Segments(folder, TIMES, position, TIMES_GATHER_SECONDS)
        self._open: str | None = None  # the stream that the last row is of, while more may be put into that row
        self._second, self._count = 0, 0
        self._add(Row(0 if position == 0 and (out or err) else self._milliseconds(), out, err))

    def note(self, stream: str, out: int, err: int) -> None:
        """This stream was just read; both are so long now."""
        row = Row(self._milliseconds(), out, err)
        second = row.milliseconds // 1000
        if second != self._second:
            self._second, self._count = second, 0
        same = self._open == stream or (self._open is not None and self._count >= ROWS_A_SECOND)
        if not (same and self.disk.amend(row.packed())):
            self._add(row)
        self._open = stream

    def _add(self, row: Row) -> None:
        self.disk.add(row.packed())
        self.position += ROW_BYTES
        self._count += 1

    def _milliseconds(self) -> int:
        return max(1, int(self._now().timestamp() * 1000))

    def close_row(self) -> None:
        """To be called before positions are reported: what the job prints later is no part of a row before them."""
        self._open = None


# ---- Spools: the pipes that the shim reads, with bytes held in memory on their way to the disk

HELD_BYTES = 8 << 20  # that the disk has not taken yet; then the job waits at its pipe, and nothing is lost
READ_BYTES = 1 << 16
NAMES = ("out", "err")


class Spool:
    """The reading end of one stream. `position` counts bytes of the stream since the job's beginning, over all machines."""

    def __init__(self, folder: Path, stream: str, position: int) -> None:
        self.position = position
        self.disk = Segments(folder, stream, position)
        self.read_fd, self.write_fd = os.pipe()
        os.set_blocking(self.read_fd, False)
        self.name = str(Path(f"/proc/self/fd/{self.write_fd}").readlink())  # what CRIU calls the pipe
        self.ended = False

    def close_writer(self) -> None:
        """Let go of the end that the job holds, so that the stream ends when the job does."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    @property
    def is_full(self) -> bool:
        """Whether the disk is too far behind for more to be read now."""
        return self.disk.waiting_bytes >= HELD_BYTES

    def take(self) -> bool:
        """Read once; False = there is nothing now."""
        try:
            data = os.read(self.read_fd, READ_BYTES)
        except BlockingIOError:
            return False
        self.ended = not data
        self.position += len(data)
        if data:
            self.disk.add(data)
        return not self.ended

    def close(self) -> None:
        """Give everything back."""
        self.close_writer()
        self.disk.close()
        if self.read_fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self.read_fd)
        self.read_fd = -1


class Output:
    """All streams of the job. `watch` and `unwatch` tie a descriptor to a call; `moved` is called when the disk caught up."""

    def __init__(
        self, watch: Callable[[int, Callable[[], None]], None], unwatch: Callable[[int], None], moved: Callable[[], None]
    ) -> None:
        self._watch, self._unwatch, self._moved = watch, unwatch, moved
        self._spools: dict[str, Spool] = {}
        self._times: Times | None = None

    def open(self, folder: Path, log: Mapping[str, int]) -> None:
        """Make the pipes; the streams go on at these positions. Raises OSError."""
        for name in NAMES:
            self._spools[name] = Spool(folder, name, int(log.get(name, 0)))
        self._times = Times(folder, int(log.get(TIMES, 0)), self._spools["out"].position, self._spools["err"].position)

    def give(self, uid: int, gid: int) -> None:
        """The pipes belong to this user, who may open them by name, as /dev/stdout. Raises OSError."""
        for s in self._spools.values():
            os.fchown(s.read_fd, uid, gid)

    def listen(self) -> None:
        """The job has its ends: read from now on."""
        for name, s in self._spools.items():
            s.close_writer()
            self._watch(s.disk.told, partial(self._told, name))
            self._listen_to(name)
        if self._times is not None:
            self._watch(self._times.disk.told, self._rows_told)

    def close(self) -> None:
        """Give everything back."""
        for s in self._spools.values():
            for fd in (s.read_fd, s.disk.told):
                self._unwatch(fd)
            s.close()
        self._spools = {}
        if self._times is not None:
            self._unwatch(self._times.disk.told)
            self._times.disk.close()
        self._times = None

    @property
    def ends(self) -> dict[str, int]:
        """The descriptors that the job writes to, in the order of NAMES."""
        return {name: s.write_fd for name, s in self._spools.items()}

    @property
    def names(self) -> dict[str, str]:
        """What CRIU calls the pipes."""
        return {name: s.name for name, s in self._spools.items()}

    def positions(self) -> dict[str, int]:
        """Bytes of each stream since the job's beginning, and of the record of times; the last of them may be on their way to
        the disk still. Ends the open row of the record: what the job prints later is no part of what was reported.
        """
        found = {name: s.position for name, s in self._spools.items()}
        if self._times is not None:
            self._times.close_row()
            found[TIMES] = self._times.position
        return found

    def drain(self) -> None:
        """Take all that is in the pipes. Raises OSError while the disk takes nothing; nothing is lost then."""
        for name, s in self._spools.items():
            while s.take():
                self._note(name)
        for disk in self._disks():
            if disk.trouble is not None:
                raise disk.trouble
            disk.tell()  # a save waits until all of it is there

    def is_kept(self) -> bool:
        """Whether all that was read is on disk; if not, `moved` is called when that may have changed."""
        behind = [x for x in self._disks() if x.waiting_bytes]
        for disk in behind:
            disk.tell()
        return not behind

    def _disks(self) -> list[Segments]:
        return [x.disk for x in (*self._spools.values(), self._times) if x is not None]

    def _note(self, name: str) -> None:
        if self._times is not None:
            self._times.note(name, self._spools["out"].position, self._spools["err"].position)

    def _listen_to(self, name: str) -> None:
        s = self._spools[name]
        if not s.ended:
            self._watch(s.read_fd, partial(self._ready, name))

    def _ready(self, name: str) -> None:
        """One read, for what the job wrote to the other stream meanwhile comes before what it writes to this one now."""
        s = self._spools[name]
        if not s.is_full and s.take():
            self._note(name)
        if full := s.is_full:
            s.disk.tell()  # to read on
        if s.ended or full:
            self._unwatch(s.read_fd)

    def _told(self, name: str) -> None:
        s = self._spools.get(name)
        if s is None:
            return  # closed a moment ago
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(s.disk.told)
        self._listen_to(name)
        self._moved()

    def _rows_told(self) -> None:
        if self._times is not None:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._times.disk.told)
            self._moved()
