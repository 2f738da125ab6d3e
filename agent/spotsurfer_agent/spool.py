"""The output of the job: pipes that the shim reads, held in memory on their way to the disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from spotsurfer_agent.segments import Segments

HELD_BYTES = 8 << 20  # that the disk has not taken yet; then the job waits at its pipe, and nothing is lost
READ_BYTES = 1 << 16
NAMES = ("out", "err")


class Spool:
    """The reading end of one stream. `position` counts bytes of the stream since the job's beginning, over all machines."""

    def __init__(self, folder: Path, stream: str, position: int) -> None:
        self.position = position
        self._disk = Segments(folder, stream, position)
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
    def told(self) -> int:
        """Readable once the disk has all, or takes no more, after `ask`."""
        return self._disk.told

    @property
    def trouble(self) -> OSError | None:
        """Why the disk takes nothing just now."""
        return self._disk.trouble

    @property
    def is_full(self) -> bool:
        """Whether the disk is too far behind for more to be read now."""
        return self._disk.waiting_bytes >= HELD_BYTES

    @property
    def is_kept(self) -> bool:
        """Whether all that was read is on disk."""
        return self._disk.waiting_bytes == 0

    def ask(self) -> None:
        """Be told when the disk has caught up."""
        self._disk.tell()

    def drain(self, *, whole: bool = False) -> None:
        """Take what is in the pipe now; unless the `whole` is wanted, no more than may be held."""
        while whole or not self.is_full:
            try:
                data = os.read(self.read_fd, READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                self.ended = True
                return
            self.position += len(data)
            self._disk.add(data)

    def close(self) -> None:
        """Give everything back."""
        self.close_writer()
        self._disk.close()
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

    def open(self, folder: Path, log: Mapping[str, int]) -> None:
        """Make the pipes; the streams go on at these positions. Raises OSError."""
        for name in NAMES:
            self._spools[name] = Spool(folder, name, int(log.get(name, 0)))

    def give(self, uid: int, gid: int) -> None:
        """The pipes belong to this user, who may open them by name, as /dev/stdout. Raises OSError."""
        for s in self._spools.values():
            os.fchown(s.read_fd, uid, gid)

    def listen(self) -> None:
        """The job has its ends: read from now on."""
        for s in self._spools.values():
            s.close_writer()
            self._watch(s.told, partial(self._told, s))
            self._listen_to(s)

    def close(self) -> None:
        """Give everything back."""
        for s in self._spools.values():
            for fd in (s.read_fd, s.told):
                self._unwatch(fd)
            s.close()
        self._spools = {}

    @property
    def ends(self) -> dict[str, int]:
        """The descriptors that the job writes to, in the order of NAMES."""
        return {name: s.write_fd for name, s in self._spools.items()}

    @property
    def names(self) -> dict[str, str]:
        """What CRIU calls the pipes."""
        return {name: s.name for name, s in self._spools.items()}

    @property
    def positions(self) -> dict[str, int]:
        """Bytes of each stream since the job's beginning; the last of them may be on their way to the disk still."""
        return {name: s.position for name, s in self._spools.items()}

    def drain(self) -> None:
        """Take all that is in the pipes. Raises OSError while the disk takes nothing; nothing is lost then."""
        for s in self._spools.values():
            s.drain(whole=True)
        for s in self._spools.values():
            if s.trouble is not None:
                raise s.trouble

    def is_kept(self) -> bool:
        """Whether all that was read is on disk; where not, `moved` is called when that may have changed."""
        behind = [s for s in self._spools.values() if not s.is_kept]
        for s in behind:
            s.ask()
        return not behind

    def _listen_to(self, s: Spool) -> None:
        if not s.ended:
            self._watch(s.read_fd, partial(self._ready, s))

    def _ready(self, s: Spool) -> None:
        s.drain()
        if full := s.is_full:
            s.ask()  # to read on
        if s.ended or full:
            self._unwatch(s.read_fd)

    def _told(self, s: Spool) -> None:
        if s.read_fd < 0:
            return  # closed a moment ago
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(s.told)
        self._listen_to(s)
        self._moved()
