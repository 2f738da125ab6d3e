"""Live dumps with a receiver that is slow, paused or starved, on a minibox: is every image of one instant?"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from spotsurfer_agent.files import tree
from spotsurfer_agent.save import image_intake, precopy, session, stream
from spotsurfer_agent.save.image_intake import Intake
from spotsurfer_agent.save.session import Saving
from spotsurfer_wire.chunks.reader import Reader
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.obstore import open_store
from support.engine_kit import JOB, CriuEngine, engine, newest, request, runs, turns_pass

PROGRAM = Path(__file__).with_name("stamping_job.py")
PAGES, PAGE, MAGIC = 4096, 4096, b"STAMPED!"
SMALL = 64 << 10
SIPS_OF_A_PIPE = 12  # a little less: the smallest pipe in use holds 1 MiB
HOGS = 3
SCRATCH = Path("/mnt/built")


class Slow(stream.Receiver):
    """Takes little at a time, with a break after each."""

    def pump(self, name: str, fd: int, sink: stream.Sink) -> None:
        super().pump(name, fd, Sips(sink, SMALL, lambda: time.sleep(0.01)))


class Paused(stream.Receiver):
    """Stands still again and again, also while the rest of the image fits into the pipe."""

    def pump(self, name: str, fd: int, sink: stream.Sink) -> None:
        sips = itertools.count(1)
        super().pump(name, fd, Sips(sink, SMALL, lambda: time.sleep(0 if next(sips) % SIPS_OF_A_PIPE else 0.15)))


class Starved(stream.Receiver):
    """Only gets what busy processes leave over."""

    def pump(self, name: str, fd: int, sink: stream.Sink) -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        super().pump(name, fd, Sips(sink, SMALL, lambda: None))


class Sips:
    """A sink that never takes much at once."""

    def __init__(self, sink: stream.Sink, most: int, after: Callable[[], None]) -> None:
        self._sink, self._most, self._after = sink, most, after
        self.end, self.abort = sink.end, sink.abort

    def room(self) -> memoryview:
        return self._sink.room()[: self._most]

    def filled(self, count: int) -> None:
        self._sink.filled(count)
        self._after()


RECEIVERS = {"slow": Slow, "paused": Paused, "starved": Starved}


def torn(kind: str, dumps: str, wait: str, way: str) -> None:
    """Prints how many of so many images are torn; `wait` "no" takes out what makes CRIU wait for the receiver.

    `way`: "stream", or "ahead" where memory is copied before the freeze.
    """
    if way == "stream":
        precopy.WORTH_BYTES = 1 << 40
    if wait == "no":
        take_wait_out()
    image_intake.Receiver = RECEIVERS[kind]  # type: ignore[misc]
    e = engine()
    shutil.copy(PROGRAM, Path(e.scratch(), "work"))
    e.start(Spec(JOB, ["/usr/bin/python3", "stamping_job.py", str(PAGES)]))
    turns_pass(e, 3)
    with hogs(HOGS if kind == "starved" else 0):
        found = [wrong(e, number) for number in range(1, int(dumps) + 1)]
    runs(e)
    e.kill()
    print("torn", sum(found))


def take_wait_out() -> None:
    """Let the job run on before its memory was read, as if CRIU's hook did not wait for that."""
    drained, settle, send = Intake.drained, Intake.settle, Saving._send

    def whole(self: Saving, taken: Intake, instant: session.Instant) -> Manifest:
        drained(taken, lambda: None)  # complete the image is to be, only not of one instant
        settle(taken, self._at.cgroup.pids())
        return send(self, taken, instant)

    Intake.drained = lambda *_: None  # type: ignore[method-assign]
    Intake.settle = lambda *_: None  # type: ignore[method-assign]
    # this check would notice what was not read yet
    Saving._all_there = lambda *_: None  # type: ignore[method-assign]
    Saving._send = whole  # type: ignore[method-assign,assignment]


@contextlib.contextmanager
def hogs(count: int) -> Iterator[None]:
    made = []
    for _ in range(count):
        pid = os.fork()
        while pid == 0:
            pass
        made.append(pid)
    try:
        yield
    finally:
        for pid in made:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def wrong(e: CriuEngine, number: int) -> bool:
    """Whether the image of one live save is of more than one instant. Its base, if any, must not change that."""
    base = f"000001-{number - 1:06d}" if number > 1 else None
    e.save(request(number, final=False, base=base))
    stamps = stamps_of(newest(open_store("file:///run/store")))
    assert len(stamps) == PAGES, f"{len(stamps)} of {PAGES} pages are in the image"
    return stamps != sorted(stamps, reverse=True) or stamps[0] - stamps[-1] > 1


def stamps_of(image: object) -> list[int]:
    shutil.rmtree(SCRATCH, ignore_errors=True)
    SCRATCH.mkdir()
    tree.build(SCRATCH, image.image, image.chunks, Reader(open_store("file:///run/store"), JOB, Keys.derive(b"", JOB)))  # type: ignore[attr-defined]
    out = []
    for path in SCRATCH.glob("pages-*.img"):
        data = path.read_bytes()
        out += [
            int.from_bytes(data[at + 8 : at + 16], "little")
            for at in range(0, len(data), PAGE)
            if data[at : at + 8] == MAGIC and not any(data[at + 16 : at + PAGE])
        ]
    return out


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
