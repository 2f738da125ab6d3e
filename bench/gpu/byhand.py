"""The same steps without the agent: `python -m bench.gpu.byhand PLAN` in a box; figures go to /run/share.

GPU memory is moved out and back some times, each time with the machine's memory prepared in another way, to tell what slows it:

    plain      as it comes
    again      the memory that the driver gave back a moment ago: the machine below has all of it in place
    compacted  the kernel was asked to make huge blocks of what is free
    touched    as much free memory as it takes was touched, and given back, before

then it is moved out once more and CRIU's stream is read into memory. What of the memory that came consists of huge pages, and
how much of the free memory was in blocks of that size, says whether the driver got them.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from spotsurfer_agent.criu import command
from spotsurfer_agent.gpu.driver_port import OK, Driver
from spotsurfer_agent.host.tools import Tools
from spotsurfer_agent.save.stream import Receiver
from support import cuda_scenes, cuda_standin

from bench.gpu.memory import Pages, pages

SHARE, WORK = Path("/run/share"), Path("/tmp/byhand")
START_SECONDS, TRIES = 300.0, 50
BLOCK_BYTES = 64 << 20
Figures = dict[str, Any]


class Kept:
    """A `Sink` that keeps a file in memory."""

    def __init__(self) -> None:
        self._blocks: list[mmap.mmap] = []
        self._at = BLOCK_BYTES

    def room(self) -> memoryview:
        """What is left of a block."""
        if self._at == BLOCK_BYTES:
            self._blocks.append(block(BLOCK_BYTES))
            self._at = 0
        return memoryview(self._blocks[-1])[self._at :]

    def filled(self, count: int) -> None:
        """So much of it."""
        self._at += count

    def end(self) -> None:
        """All is there."""

    def abort(self) -> None:
        """Something is missing."""


def block(size: int) -> mmap.mmap:
    """Memory of its own, of huge pages where they are to be had."""
    made = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    made.madvise(mmap.MADV_HUGEPAGE)
    return made


def prepared(variant: str, size: int) -> None:
    """Prepare the machine's memory."""
    if variant == "compacted":
        Path("/proc/sys/vm/compact_memory").write_text("1")
    if variant == "touched":
        with contextlib.closing(block(size + size // 10)) as memory:
            for at in range(0, len(memory), mmap.PAGESIZE):
                memory[at] = 1


class Job:
    """The program of the plan, and the driver."""

    def __init__(self, plan: Figures) -> None:
        WORK.mkdir()
        for name in plan["files"]:
            shutil.copy(name, WORK)
        self.driver: Driver = driver(plan)
        self._out = WORK / "out"
        with self._out.open("wb") as out:
            self._process = subprocess.Popen(
                plan["command"], cwd=WORK, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )
        self.pid = self._process.pid
        self.wait(int(plan["first"]))

    def step(self) -> int:
        """The newest."""
        words = [x.split() for x in self._out.read_text(errors="replace").splitlines()]
        return max((int(x[1]) for x in words if len(x) > 2 and x[0] in ("step", "turn")), default=-1)

    def wait(self, step: int) -> None:
        """Until it was there."""
        end = time.monotonic() + START_SECONDS
        while self.step() < step:
            assert self._process.poll() is None, self._out.read_text(errors="replace")[-2000:]
            assert time.monotonic() < end, self._out.read_text(errors="replace")[-500:]
            time.sleep(0.05)

    def lock(self) -> None:
        """Its calls stand still."""
        for _ in range(TRIES):
            if self.driver.lock(self.pid, 400) == OK:
                return
        raise AssertionError("the lock never succeeded")

    def used(self) -> int:
        """Bytes of its GPU memory, and what others use of the GPUs."""
        return sum(card.used_bytes for card in self.driver.about().cards)

    def moved_out(self) -> tuple[float, int, Pages]:
        """Seconds, bytes, and what memory came."""
        before, used, began = pages(), self.used(), time.monotonic()
        result = self.driver.checkpoint(self.pid)
        seconds = time.monotonic() - began
        assert result == OK, result
        return seconds, used - self.used(), pages().since(before)

    def moved_back(self) -> float:
        """Seconds."""
        began = time.monotonic()
        result = self.driver.restore(self.pid, [])
        seconds = time.monotonic() - began
        assert result == self.driver.unlock(self.pid) == OK, result
        return seconds

    def dumped(self, tools: Tools) -> tuple[float, int]:
        """Seconds until CRIU's stream was in memory, and its bytes; it is dead then."""
        images, work = WORK / "images", WORK / "criu"
        for folder in (images, work / "plugins"):
            folder.mkdir(parents=True)
        common = ["skip" if x == "nftables" else x for x in command.COMMON]
        argv = [*tools.criu, "dump", "--stream", "--tree", str(self.pid), "--images-dir", str(images), "--work-dir", str(work)]
        argv += ["--log-file", "dump.log", "--libdir", str(work / "plugins"), "--shell-job", *common]
        receiver = Receiver(images, lambda _: Kept())
        began = time.monotonic()
        try:
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            assert done.returncode == 0, (work / "dump.log").read_text(errors="replace")[-1500:]
            assert receiver.drained(60.0)
            return time.monotonic() - began, receiver.received_bytes
        finally:
            receiver.close()


def driver(plan: Figures) -> Driver:
    """This machine's, or the stand-in."""
    if plan.get("standin"):
        cuda_scenes.machine()
        return cuda_standin.StandIn()
    from spotsurfer_agent.gpu.nvidia_driver import Binding

    return Binding()


def by_hand(plan: Figures, tools: Tools) -> Figures:
    """All of it, in order."""
    job, rows = Job(plan), list[Figures]()
    size = job.used()
    for variant in plan["by_hand"].split(","):
        prepared(variant, size)
        job.lock()
        seconds, moved, came = job.moved_out()
        rows.append({"variant": variant, "out_seconds": seconds, "gpu_bytes": moved, **came.told(moved)})
        rows[-1]["back_seconds"] = job.moved_back()
        job.wait(job.step() + 2)
    job.lock()
    seconds, moved, came = job.moved_out()
    dump, size = job.dumped(tools)
    last = {"out_seconds": seconds, "gpu_bytes": moved, **came.told(moved), "dump_seconds": dump, "image_bytes": size}
    return {"variants": rows, **last}


if __name__ == "__main__":
    asked: Figures = json.loads(sys.argv[1])
    prefix = Path(sys.executable).parent.parent / "prefix"
    told = by_hand(asked, Tools.find(prefix if prefix.is_dir() else None))
    (SHARE / "figures.json").write_text(json.dumps(told))
