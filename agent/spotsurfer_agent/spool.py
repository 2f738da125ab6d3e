"""The output of the job: pipes that the shim reads, held in memory on their way to the disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from spotsurfer_agent.segments import Segments
from spotsurfer_agent.times import NAME as TIMES
from spotsurfer_agent.timeswriter import Times

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
        the disk still. Ends the open row of the record: what the job prints later is no part of what was told here.
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
        """Whether all that was read is on disk; where not, `moved` is called when that may have changed."""
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
