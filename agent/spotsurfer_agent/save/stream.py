"""The receiving side of `criu dump --stream`: CRIU sends each image file through a pipe of its own, named on a socket.

The pipes hold *references* to the job's pages, not copies. So two rules stand above all else:

1. A job that is to run on may do so only when `drained` has returned that every pipe was read to its end: what is read later is
   not what the memory was when the job stood still, and nothing would show it.
2. Bytes are read into memory of our own at once, never passed on from pipe to pipe; but what nobody wants is not read at all.

CRIU is stopped at its post-dump hook when `drained` is asked, so everything that it announced is in the socket by then. It must
not be waited for until the socket closes: the statistics come after the hook.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from spotsurfer_agent.criu import images
from spotsurfer_agent.criu.images import StreamError
from spotsurfer_agent.host import shim_protocol
from spotsurfer_agent.linux.processors import lane_count

SOCKET = "streamer-capture.sock"
LANES_MIN, LANES_MAX = 2, 6  # more than memory takes at once is of no use
PROCESSORS_EACH = 2  # of the machine for each lane
PIECE_BYTES = 1 << 20  # at once: the other lanes are to get some, too
WORTH_BYTES = 4 << 20  # for less room than this, one reader is as fast


class Filling:
    """Room that several lanes fill from one pipe, each piece by piece."""

    def __init__(self, fd: int, room: memoryview, wait: Callable[[], None]) -> None:
        self._fd, self._wait, self._ends = fd, wait, False
        self._lock = threading.Lock()
        self.rest = room  # that no lane has taken

    def take(self, into: int, most: int) -> memoryview:
        """Move the next bytes into a pipe, and return the room for them; it is empty at the end. Raises as `Lanes.fill`."""
        with self._lock:
            while self.rest and not self._ends:
                try:
                    most = min(len(self.rest), most)
                    count = os.splice(self._fd, into, most, flags=os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE)
                except BlockingIOError:
                    self._wait()
                    continue
                self._ends = not count
                piece, self.rest = self.rest[:count], self.rest[count:]
                return piece
            return self.rest[:0]


class Lane:
    """A pipe of our own."""

    def __init__(self) -> None:
        self._out, self._into = os.pipe()
        self._most = min(images.widen_pipe(self._into), PIECE_BYTES)

    def work(self, filling: Filling) -> None:
        """Fill piece after piece of it, until there is nothing more. Raises as `Lanes.fill`."""
        while piece := filling.take(self._into, self._most):
            _copy(self._out, piece)

    def close(self) -> None:
        """Nobody works with it any more."""
        os.close(self._out)
        os.close(self._into)


class Lanes:
    """Copy one pipe's bytes on several processors, because only one reader at a time copies from a pipe.

    The references that CRIU's pipe holds are moved on to pipes of our own, which costs next to nothing, and threads copy what
    is in these. Nothing counts as read before it was copied: rule 1 above.
    """

    def __init__(self) -> None:
        self._own, *self._others = (Lane() for _ in range(lane_count(LANES_MIN, LANES_MAX, PROCESSORS_EACH)))
        self._pool = ThreadPoolExecutor(len(self._others), thread_name_prefix="image lane")

    def fill(self, fd: int, room: memoryview, wait: Callable[[], None]) -> int:
        """Fill the room from a pipe; less than that only at the pipe's end. `wait` is called while nothing is there yet.

        Raises OSError, and what `wait` raises.
        """
        filling = Filling(fd, room, wait)
        others = [self._pool.submit(lane.work, filling) for lane in self._others]
        try:
            self._own.work(filling)
        finally:
            futures.wait(others)
        try:
            while others:
                others.pop().result()
        finally:
            others.clear()  # or what one raises would hold itself, and with it the memory of the save
        return len(room) - len(filling.rest)

    def close(self) -> None:
        """End the threads, when what was taken is copied."""
        self._pool.shutdown()
        for lane in (self._own, *self._others):
            lane.close()


def _copy(fd: int, room: memoryview) -> None:
    while room:
        room = room[os.readv(fd, [room]) :]


class Sink(Protocol):
    """Takes one file, in order. May raise anything: the dump then fails and the job runs on."""

    def room(self) -> memoryview:
        """Where the next bytes go, at least one; may wait until there is room."""
        ...

    def filled(self, count: int) -> None:
        """So many bytes were put into what `room` gave last."""
        ...

    def end(self) -> None:
        """The file is complete."""
        ...

    def abort(self) -> None:
        """It never will be; called after a failure instead of `end`."""
        ...


@dataclass(slots=True)
class Passed:
    """Stands for a sink of a file that nobody wants to read."""

    count: int = 0  # bytes that went by


class Receiver:
    """Listens in the folder of the images from the moment it is made.

    `sinks` makes a sink for each file's name, in the order in which CRIU announces them.
    """

    def __init__(self, folder: Path, sinks: Callable[[str], Sink | Passed]) -> None:
        """Raises StreamError if the folder's path is too long for a socket."""
        self._path = images.socket_address(folder, SOCKET)
        self._sinks = sinks
        self._lock = threading.Lock()  # held while one announcement is taken in
        self._readers: list[threading.Thread] = []
        self._control: socket.socket | None = None
        self.failure: BaseException | None = None  # the first thing that went wrong
        self._closed = self._hung_up = False
        self.received_bytes = 0
        self._listener = shim_protocol.listen(self._path)
        self._stop, self._stopper = os.pipe()  # readable when all are to stop
        self._thread = threading.Thread(target=self._serve, name="image stream", daemon=True)
        self._thread.start()

    def drained(self, timeout_seconds: float) -> bool:
        """Whether everything that CRIU announced so far was read to its end. CRIU stands at its hook or has ended.

        Raises the first failure of a sink.
        """
        end = time.monotonic() + timeout_seconds
        while True:
            readers = self._announced()
            for thread in readers or ():  # none can be added meanwhile: CRIU stands still
                thread.join(max(0.0, end - time.monotonic()))
            done = readers is not None and not any(thread.is_alive() for thread in readers)
            if done or time.monotonic() >= end:
                if self.failure is not None:
                    raise self.failure
                return done
            time.sleep(0.001)

    def _announced(self) -> list[threading.Thread] | None:
        """All readers, or None while an announcement lies unread."""
        with self._lock:
            source = self._control or (None if self._hung_up else self._listener)
            if source is not None and _ready(source.fileno(), 0):
                return None
            return list(self._readers)

    def close(self) -> None:
        """Stop receiving; a CRIU that still sends gets a broken pipe and lets its job run on. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._halt()
        self._thread.join()
        for thread in self._readers:
            thread.join()
        self._listener.close()
        for fd in (self._stop, self._stopper):
            os.close(fd)
        self._path.unlink(missing_ok=True)
        del self._sinks  # its owner holds us: the tables of a whole save would stay until Python collects cycles

    # ------------------------------------------------------------ announcements

    def _serve(self) -> None:
        try:
            if self._asked(self._listener):
                with self._lock:
                    self._control, _ = self._listener.accept()
                control = self._control
                while self._asked(control) and self._take(control):
                    pass
        except Exception as e:
            self._fail(e)
        finally:
            with self._lock:
                if self._control is not None:
                    self._control.close()  # and with it pipes that were announced and not taken: CRIU must not wait for them
                self._control, self._hung_up = None, True

    def _asked(self, s: socket.socket) -> bool:
        """Wait for it; False when it is time to stop."""
        _ready(s.fileno(), None, self._stop)
        return not _ready(self._stop, 0)

    def _take(self, control: socket.socket) -> bool:
        """One announcement becomes a running reader, in one step for callers of `drained`. False: CRIU hung up."""
        with self._lock:
            name = images.file_name(control)
            if name is None:
                return False
            if not name or "/" in name or name.startswith("."):
                raise StreamError(0, f"CRIU announced an image file named {name!r}")
            pipe = images.receive_descriptor(control, name)
            if pipe is None:
                return False
            try:
                images.widen_pipe(pipe)
                sink = self._sinks(name)
            except BaseException:
                os.close(pipe)
                raise
            reader = threading.Thread(target=self._read, args=(name, pipe, sink), name=f"image {name}", daemon=True)
            reader.start()  # before it is listed: a listed reader may be joined
            self._readers.append(reader)
        return True

    # ------------------------------------------------------------ pipes

    def _read(self, name: str, fd: int, sink: Sink | Passed) -> None:
        try:
            if isinstance(sink, Passed):
                self._pass_over(fd, sink)
                return
            self.pump(name, fd, sink)
            sink.end()
        except BaseException as e:
            self._fail(e)
            if not isinstance(sink, Passed):
                with contextlib.suppress(Exception):
                    sink.abort()
        finally:
            os.close(fd)

    def _pass_over(self, fd: int, passed: Passed) -> None:
        """To its end, without a copy."""
        with Path(os.devnull).open("wb", buffering=0) as nowhere:
            while True:
                self._await(fd)
                count = os.splice(fd, nowhere.fileno(), images.PIPE_BYTES, flags=os.SPLICE_F_MOVE)
                if not count:
                    return
                self.received_bytes += count
                passed.count += count

    def pump(self, name: str, fd: int, sink: Sink) -> None:  # noqa: ARG002 -- a slow receiver in tests asks for the name
        """From one pipe into its sink, to the end."""
        os.set_blocking(fd, False)
        with contextlib.ExitStack() as stack:
            lanes: Lanes | None = None
            while True:
                room = sink.room()
                if lanes is None and len(room) >= WORTH_BYTES:
                    lanes = stack.enter_context(contextlib.closing(Lanes()))
                count = self._read_some(fd, room) if lanes is None else lanes.fill(fd, room, lambda: self._await(fd))
                if not count:
                    return
                self.received_bytes += count
                sink.filled(count)

    def _read_some(self, fd: int, room: memoryview) -> int:
        while True:
            try:
                return os.readv(fd, [room])
            except BlockingIOError:
                self._await(fd)

    def _await(self, fd: int) -> None:
        """Wait for bytes or the end. Raises StreamError when it is time to stop."""
        _ready(fd, None, self._stop)
        if _ready(self._stop, 0):
            raise StreamError(0, "the receiver of the image was stopped")

    def _fail(self, e: BaseException) -> None:
        """Remember it, and let every other pipe break too: CRIU must not come to its end."""
        if self.failure is None:
            self.failure = e
        self._halt()

    def _halt(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._stopper, b"x")


def _ready(fd: int, timeout_ms: int | None, other: int | None = None) -> bool:
    """Whether it (or the other) can be read or has ended; waits for so long."""
    look = select.poll()
    for each in (fd, other):
        if each is not None:
            look.register(each, select.POLLIN)
    return bool(look.poll(timeout_ms))
