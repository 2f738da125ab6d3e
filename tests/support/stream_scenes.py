"""Streamed saves of trees that fork, with little memory, and with receivers that fail; see `engine_scenes`."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from spotsurfer_agent.save import image_intake, precopy, stream
from spotsurfer_wire.chunks.budget import Limits
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.obstore import open_store
from support.engine_kit import BASE, JOB, CriuEngine, W, engine, newest, output, refused, request, runs, until

PROGRAM = Path(__file__).with_name("forking_job.py")
SIZE, WORKERS = 48 << 20, 3


def begin(e: CriuEngine) -> None:
    shutil.copy(PROGRAM, Path(e.scratch(), "work"))
    e.start(Spec(JOB, ["/usr/bin/python3", "forking_job.py", str(SIZE), str(WORKERS)]))
    all_work(e)


def all_work(e: CriuEngine) -> None:
    """Every worker got on, so it found its memory right."""
    at = len(output(e))

    def seen() -> bool:
        status = e.status()
        assert status.state is W.RUNNING, (status, output(e, "err"))
        return all(f"worker {n} " in output(e)[at:].decode(errors="replace") for n in range(WORKERS))

    until(seen, 60.0)


def moves(e: CriuEngine, number: int, base: str | None = None) -> int:
    """Saved for the last time, killed, restored: every worker goes on. How many bytes were sent."""
    saved = e.save(request(number, final=True, base=base))
    e.kill()
    e.restore(newest(open_store("file:///run/store")), Spec(JOB, []))
    all_work(e)
    return saved.new_bytes


def forking() -> None:
    """Several processes that fork at any moment: saved live with and without a base, finally, restored, saved and restored."""
    store = open_store("file:///run/store")
    e = engine(store)
    begin(e)
    base = None
    sent = []
    for number in range(1, 5):
        saved = e.save(request(number, final=False, base=base))
        base = saved.checkpoint
        sent.append(saved.new_bytes)
        all_work(e)
    for number in (5, 6):  # the second one builds on an image that another machine made
        sent.append(moves(e, number, base))
        base = newest(store).id
    assert max(sent[1:]) < sent[0] / 2
    e.kill()


def short_of_memory() -> None:
    """Far less memory than the image: the freeze is longer, and the image as right as any."""
    store = open_store("file:///run/store")
    e = engine(store)
    e.limits, e.memory_bytes = Limits(memory_bytes=64 << 20), 64 << 20
    begin(e)
    first = e.save(request(1, final=False))
    all_work(e)
    e.save(request(2, final=False, base=first.checkpoint))
    all_work(e)
    moves(e, 3)
    e.kill()


class Fails(stream.Receiver):
    """Breaks in the middle of the pages."""

    def pump(self, name: str, fd: int, sink: stream.Sink) -> None:
        if name.startswith("pages"):
            sink.room()
            time.sleep(0.05)
            raise OSError(0, "the receiver broke")
        super().pump(name, fd, sink)


class Loses(stream.Receiver):
    """Most pages never come, and nobody says a word; in so many dumps."""

    times = 0

    def __init__(self, folder: Path, sinks: Callable[[str], stream.Sink]) -> None:
        self._loses = Loses.times > 0
        Loses.times -= self._loses
        super().__init__(folder, sinks)

    def pump(self, name: str, fd: int, sink: stream.Sink) -> None:
        if name.startswith("pages") and self._loses:
            sink.room()[:4096] = bytes(4096)
            sink.filled(4096)
            while os.read(fd, 1 << 20):
                pass
            return
        super().pump(name, fd, sink)


def memory_missing() -> None:
    """An image that lacks memory is none: it is made once more; then the save fails with both numbers, and the job runs on."""
    precopy.WORTH_BYTES = 1 << 40  # all of it is streamed
    e = engine()
    begin(e)
    good = image_intake.Receiver
    image_intake.Receiver = Loses  # type: ignore[misc]
    for number, final in ((1, False), (2, True)):
        Loses.times = 2
        told = refused("save", partial(e.save, request(number, final=final)))
        assert "CRIU's image has 0 MiB of the" in told, told
        assert "Dumping pages" in (BASE / "job/failed-dump.log").read_text()
        runs(e)
        all_work(e)
    Loses.times = 1
    moves(e, 3)
    assert Loses.times == 0
    image_intake.Receiver = good  # type: ignore[misc]
    e.kill()


def receiver_fails() -> None:
    """The dump fails, the job runs on as if nothing had been, and the next save is whole."""
    e = engine()
    begin(e)
    good = image_intake.Receiver
    image_intake.Receiver = Fails  # type: ignore[misc]
    for number, final in ((1, False), (2, True)):
        assert "the receiver broke" in refused("save", partial(e.save, request(number, final=final)))
        runs(e)
        all_work(e)
    image_intake.Receiver = good  # type: ignore[misc]
    moves(e, 3)
    e.kill()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
