"""Takes in the image of one dump as it streams: memory pages go on to chunks, all other files to a folder."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from spotsurfer_wire.linux import procfs

from spotsurfer_agent.chunks.fingerprints import is_pages_name
from spotsurfer_agent.criu.images import StreamError
from spotsurfer_agent.save.memory_reserve import Closed
from spotsurfer_agent.save.pages import Pages
from spotsurfer_agent.save.precopy import Aheads, Copied
from spotsurfer_agent.save.stream import Passed, Receiver, Sink

LOOK_SECONDS = 1.0
STALL_SECONDS = 60.0  # a frozen job is let go if nothing of it was read or sent for so long
BUFFER_BYTES = 1 << 18


class Intake:
    """One dump's image. CRIU is started when it is there. `folder` gets the files that are not memory pages."""

    def __init__(self, folder: Path, pages: Pages) -> None:
        """Memory pages go to `pages`, which are given up when this is closed. Raises StreamError and OSError."""
        self._folder, self.pages = folder, pages
        self._aheads: Aheads | None = None
        self._passed: dict[str, Passed] = {}
        self._last = ""
        try:
            self._receiver = Receiver(folder, self._sink)
        except OSError:
            pages.abandon()
            raise

    def ahead(self, pids: list[int], leading: Callable[[], AbstractContextManager[bool]], *, sends: bool) -> Copied:
        """Copy the memory of these processes while they run: the freeze is left with what they write meanwhile.

        `leading` keeps the job from being frozen while its threads are led (`shim_protocol.leading`). `sends`: send pages at
        once; pages written meanwhile are sent twice then, but memory and time are saved. Raises what stands in the way.
        """
        with leading() as may:
            self._aheads = Aheads(pids if may else [], self.pages)
        if sends:
            self.pages.release()
        try:
            with self._telling():
                return self._aheads.copy()
        finally:
            self.pages.hold()

    def settle(self, pids: list[int]) -> None:
        """All was drained and the job stands still: take what was not copied ahead. `pids`: the job's processes now.

        Raises what stands in the way.
        """
        if self._aheads is not None:
            inside = {procfs.number_inside(pid): pid for pid in pids}
            with self._telling():
                self._aheads.settle(self._folder, {name: passed.count for name, passed in self._passed.items()}, inside)

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """A reader that waits for room in memory that was closed gets the reason."""
        try:
            yield
        except Closed:
            raise self.pages.failure or StreamError(0, "the image's memory was taken away") from None

    def _sink(self, name: str) -> Sink | Passed:
        """CRIU announces a map of pages and then the file with these pages."""
        before, self._last = self._last, name
        if not is_pages_name(name):
            return _OnDisk(self._folder / name)
        if self._aheads is not None and self._aheads.has(before):
            return self._passed.setdefault(name, Passed())
        return self.pages.sink(name)

    @property
    def failure(self) -> BaseException | None:
        """The first failure; a dump that failed meanwhile failed for that reason."""
        found = self._receiver.failure
        return self.pages.failure or found if found is None or isinstance(found, Closed) else found

    @property
    def received_bytes(self) -> int:
        """Bytes that came so far."""
        return self._receiver.received_bytes

    def drained(self, alive: Callable[[], None]) -> None:
        """Wait until all that CRIU announced was read; it stands at its hook. `alive` is called now and then meanwhile.

        Raises the first failure, and StreamError when nothing moves any more.
        """
        seen, at = -1, time.monotonic()
        while True:
            with self._telling():
                if self._receiver.drained(LOOK_SECONDS):
                    return
            alive()
            moved = self._receiver.received_bytes
            if moved != seen:
                seen, at = moved, time.monotonic()
            elif time.monotonic() - at > STALL_SECONDS:
                raise StreamError(
                    0, f"nothing of the image moved for {STALL_SECONDS:.0f} s: the store is too slow or does not answer"
                )

    def unwatch(self) -> None:
        """All was taken: what the job writes now does not matter any more. Idempotent; may run beside anything but `settle`."""
        if self._aheads is not None:
            self._aheads.close()

    def close(self) -> None:
        """Stop; a CRIU that still sends fails, and the job runs on. Idempotent."""
        self.pages.refuse()
        self._receiver.close()
        self.pages.abandon()
        self.unwatch()


class _OnDisk:
    """A small image file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._room = memoryview(bytearray(BUFFER_BYTES))

    def room(self) -> memoryview:
        return self._room

    def filled(self, count: int) -> None:
        data = self._room[:count]
        while data:
            data = data[os.write(self._file, data) :]

    def end(self) -> None:
        os.close(self._file)

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._file)
