"""Live dumps while the agent is slow, stopped and short of processor time: is every image of one instant?"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from spotsurfer_agent.save import precopy, stream
from spotsurfer_wire import manifest, object_keys
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.linux.buffers import PAGE
from support import engine_kit
from support.torn_scenes import take_wait_out

from bench.scenes import images, kit
from bench.scenes.kit import Runner

MAGIC = np.uint64(0x53544D5050414745)
SIZE = 16 << 20
WORDS = 512
SLOW_BYTES, SLOW_SECONDS = 256 << 10, 0.02  # so many at a time, and then a pause
HOGS = 4
SLOW = "BENCH_SLOW_RECEIVER"
Figures = dict[str, Any]


def torn(dumps: str, wait: str) -> Figures:
    """Torn images among so many live dumps; `wait` "no" takes out what makes CRIU wait for the receiver."""
    run = Runner()
    run.start("torn", SIZE, 0)
    found: dict[str, list[int]] = {}
    numbers = itertools.count(1)
    for name, disturb in (("slow", _slow), ("paused", _paused), ("starved", _starved)):
        os.environ[SLOW] = "1" if name == "slow" else ""
        mine = [next(numbers) for _ in range(max(1, int(dumps) // 3 + (name == "slow") * (int(dumps) % 3)))]
        found[name] = _disturbed(mine, disturb, wait == "yes")
        kit.say(f"{name}: {sum(1 for x in found[name] if x)} of {len(mine)} torn, worst {max(found[name])} pages")
    run.engine.kill()
    every = [x for pages in found.values() for x in pages]
    return {
        "torn": sum(1 for x in every if x), "dumps": len(every), "worst_pages": max(every),
        "by_mode": {name: [sum(1 for x in pages if x), len(pages)] for name, pages in found.items()},
    }  # fmt: skip


def _disturbed(numbers: list[int], disturb: Callable[[int], Generator[None, None, None]], waits: bool) -> list[int]:
    """Wrong pages in each image of so many saves, made by an agent that is disturbed all the while."""
    words = ["torn_saves", ",".join(map(str, numbers)), "yes" if waits else "no"]
    agent = subprocess.Popen([sys.executable, "-m", "bench.scenes", *words], start_new_session=True)
    trouble = disturb(agent.pid)
    while agent.poll() is None:
        next(trouble)
    trouble.close()
    assert agent.returncode == 0, f"the agent that was disturbed ended with {agent.returncode}"
    return [_wrong_pages(n) for n in numbers]


def torn_saves(numbers: str, wait: str) -> Figures:
    """The agent that is disturbed: some saves of the job that runs already."""
    e = engine_kit.engine()
    e.adopt()
    if wait == "no":
        take_wait_out()
    if os.environ.get(SLOW):
        make_slow()
    for n in numbers.split(","):
        precopy.WORTH_BYTES = 0 if int(n) % 2 else 1 << 40  # every other one is streamed as a whole
        e.save(engine_kit.request(int(n), final=False))
    return {}


@dataclass(frozen=True, slots=True)
class Small:
    """A sink that takes little at a time, and then rests."""

    whole: stream.Sink

    def room(self) -> memoryview:
        return self.whole.room()[:SLOW_BYTES]

    def filled(self, count: int) -> None:
        self.whole.filled(count)
        time.sleep(SLOW_SECONDS)

    def end(self) -> None:
        self.whole.end()

    def abort(self) -> None:
        self.whole.abort()


def make_slow() -> None:
    """Have the receiver read memory slower than CRIU writes it: the last megabytes wait in the pipe for a third of a second."""
    pump = stream.Receiver.pump

    def slowly(self: stream.Receiver, name: str, fd: int, sink: stream.Sink) -> None:
        pump(self, name, fd, Small(sink) if name.startswith("pages-") else sink)

    stream.Receiver.pump = slowly  # type: ignore[method-assign]


def _slow(_agent: int) -> Generator[None, None, None]:
    """It is slow by itself: see `make_slow`."""
    while True:
        time.sleep(0.05)
        yield


def _paused(agent: int) -> Generator[None, None, None]:
    """It stands still for up to half a second, at random moments."""
    chance = random.Random(1)
    while True:
        time.sleep(chance.random() * 0.3)
        _signal(agent, signal.SIGSTOP)
        time.sleep(chance.random() * 0.5)
        _signal(agent, signal.SIGCONT)
        yield


def _starved(agent: int) -> Generator[None, None, None]:
    """It only gets what a busy machine leaves over."""
    hogs = [_hog() for _ in range(HOGS)]
    try:
        while True:
            for thread in _threads(agent):
                with contextlib.suppress(OSError):
                    os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
            time.sleep(0.05)
            yield
    finally:
        for hog in hogs:
            os.kill(hog, signal.SIGKILL)
            os.waitpid(hog, 0)


def _hog() -> int:
    pid = os.fork()
    while pid == 0:
        pass
    return pid


def _threads(agent: int) -> list[int]:
    """Threads of the agent and of what it started in its process group."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getpgid(int(folder.name)) == agent:
                found += [int(p.name) for p in (folder / "task").iterdir()]
    return found


def _signal(agent: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(agent, number)


def _wrong_pages(number: int) -> int:
    """Pages of an image that are not of the instant of the newest one: the job stamps them one after the other."""
    data = Path(kit.STORE, object_keys.manifest_key(engine_kit.JOB, kit.checkpoint(number))).read_bytes()
    folder = kit.TMPFS / "built"
    images.build(manifest.decode(data, Keys.derive(b"", engine_kit.JOB), engine_kit.JOB), folder)
    stamps: dict[int, int] = {}
    count = SIZE // PAGE
    for path in folder.glob("pages-*.img"):
        words = np.fromfile(path, dtype=np.uint64)[: path.stat().st_size // 8 // WORDS * WORDS].reshape(-1, WORDS)
        ours = (words[:, 0] ^ MAGIC) < count
        stamps |= dict(zip((words[ours, 0] ^ MAGIC).tolist(), words[ours, 1].tolist(), strict=True))
    shutil.rmtree(folder)
    newest = max(stamps.values())
    return count - sum(1 for page, k in stamps.items() if k == max(0, newest - (newest - page) % count))
