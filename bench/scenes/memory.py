"""How much memory the agent needs: its processes are looked at from a process of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LOOK_SECONDS = 0.02
FIELDS = ("RssAnon:", "RssShmem:")


@dataclass(slots=True)
class Peak:
    """Bytes of the agent's processes: before, and at most meanwhile."""

    idle: int = 0
    most: int = 0

    @property
    def above_idle(self) -> int:
        """What the work needed on top."""
        return max(0, self.most - self.idle)


def agent_bytes(without: int) -> int:
    """Private and shared memory of all processes of this machine but the job's, CRIU's and one more."""
    total = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != without:
            with contextlib.suppress(OSError, ValueError, KeyError):  # a process that just ends
                total += _bytes(folder)
    return total


def _bytes(folder: Path) -> int:
    fields = {x.split()[0]: x.split()[1:] for x in (folder / "status").read_text().splitlines()}
    if len(fields.get("NSpid:", ["1"])) > 1:
        return 0  # a pid namespace below ours: the job
    words = (folder / "cmdline").read_bytes().split(b"\0")
    if any(w.endswith(b"/criu") for w in words):
        return 0
    parent = folder.with_name(fields["PPid:"][0]) / "cmdline"
    if parent.exists() and parent.read_bytes().split(b"\0") == words:
        return 0  # a fork: it shares its parent's memory, and is another program in a moment
    return sum(int(fields[f][0]) * 1024 for f in FIELDS)


@contextlib.contextmanager
def watch() -> Iterator[Peak]:
    """The peak is filled in when the block ends."""
    peak = Peak(idle=agent_bytes(0))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _look_until_told(write)
    os.close(write)
    os.read(read, 1)  # it looks now
    try:
        yield peak
    finally:
        os.kill(child, signal.SIGTERM)
        with os.fdopen(read, "rb") as pipe:
            peak.most = int(pipe.read() or b"0")
        os.waitpid(child, 0)


def _look_until_told(write: int) -> None:
    """In the forked child, which never returns."""
    told: list[int] = []
    most, me = 0, os.getpid()
    try:
        signal.signal(signal.SIGTERM, lambda *_: told.append(1))
        os.write(write, b"x")
        while not told:
            most = max(most, agent_bytes(me))
            time.sleep(LOOK_SECONDS)
        os.write(write, str(most).encode())
    finally:
        os._exit(0)
