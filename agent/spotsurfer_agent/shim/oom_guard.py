"""Freezes a job before its machine's memory ends: the shim sets two levels on the job's control group, v1 or v2.

At `press` the job is to be frozen. v1: an event when usage crosses it; and at `wall`, a little above, the kernel puts every
process to sleep that touches new memory (`oom_kill_disable`) and reports it, however fast usage came there. v2: above
`memory.high` the kernel slows the job down to a crawl, and reports it. Page cache counts as usage but gives way, so a crossing
is looked at before it is believed; while the cache alone fills the group, the guard looks again before the fastest job could
have come there. The guard works with no agent there, and sleeps while all is well.

v2 was tried on Linux 6.1 in a virtual machine: still a third of a second after, 0.7 MiB above. Sources: the kernel's
cgroup-v1/memory.rst (sections 9, 10) and cgroup-v2.rst.
"""

from __future__ import annotations

import abc
import contextlib
import os
import select
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from spotsurfer_wire.linux.cgroups import UNIFIED, V1_MEMORY, V2_MEMORY, MemoryFiles
from spotsurfer_wire.oom_freeze_levels import TRUE_SHARE, Levels

from spotsurfer_agent.host.cgroup import JobCgroup
from spotsurfer_agent.shim.criu_runs import Owner

# ---- The kernel's side: levels and events

FASTEST_BYTES_PER_SECOND = 4 << 30
LOOK_SECONDS = (0.01, 1.0)  # between looks while the page cache fills the group


def judge(need: int, levels: Levels, at_wall: bool) -> float | None:
    """None = freeze it now; else so many seconds until it could be time. Pure. `need`: usage without page cache."""
    if at_wall or need >= TRUE_SHARE * levels.press:
        return None
    least, most = LOOK_SECONDS
    return min(max((levels.press - need) / FASTEST_BYTES_PER_SECOND, least), most)


class Kernel(abc.ABC):
    """The kernel's guard of a control group. What reads its files raises OSError, ValueError once the group is gone."""

    files: MemoryFiles

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @abc.abstractmethod
    def arm(self, levels: Levels) -> tuple[list[int], list[int]]:
        """Set the levels; descriptors that can be read when a process is at the wall, and when usage is at the press.

        Raises OSError.
        """

    def limit(self, most: int) -> None:
        """Let the kernel kill processes of the group rather than let it hold more. Raises OSError."""
        self._write(self.files.limit, str(most))

    @abc.abstractmethod
    def hush(self) -> None:
        """Take in the events of the descriptors."""

    def need(self) -> int:
        """Bytes that the group holds, page cache not counted."""
        return self.used() - self.files.page_cache(self._folder)

    def used(self) -> int:
        """All that it holds."""
        return int((self._folder / self.files.used).read_text())

    @abc.abstractmethod
    def at_wall(self) -> bool:
        """A process of the group sleeps for want of memory."""

    @abc.abstractmethod
    def lift(self) -> None:
        """No level holds any more. Idempotent."""

    @abc.abstractmethod
    def close(self) -> None:
        """Forget the events; the levels stay."""

    def _write(self, name: str, value: str) -> None:
        (self._folder / name).write_text(value)


def kernel_guard(folders: Mapping[str, str]) -> Kernel | None:
    """For the groups of a job (`cgroup.JobCgroup`); None if the kernel counts no memory in them."""
    if UNIFIED in folders:
        folder = Path(folders[UNIFIED])
        return _V2(folder) if (folder / "memory.high").exists() else None
    folder = Path(folders.get("memory", "/nowhere"))
    return _V1(folder) if (folder / "memory.oom_control").exists() else None


class _V1(Kernel):
    files = V1_MEMORY

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._events: list[int] = []

    def arm(self, levels: Levels) -> tuple[list[int], list[int]]:
        self._write("memory.oom_control", "1")
        self._write("memory.limit_in_bytes", str(levels.wall))  # the kernel refuses less than the group holds already
        self._events.append(self._event("memory.oom_control", ""))
        self._events.append(self._event("memory.usage_in_bytes", str(levels.press)))
        return self._events[:1], self._events[1:]

    def _event(self, name: str, argument: str) -> int:
        event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        file = os.open(self._folder / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._write("cgroup.event_control", f"{event} {file} {argument}".strip())
        except OSError:
            os.close(event)
            raise
        finally:
            os.close(file)
        return event

    def hush(self) -> None:
        for event in self._events:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(event)

    def at_wall(self) -> bool:
        return "under_oom 1" in (self._folder / "memory.oom_control").read_text()

    def lift(self) -> None:
        # A process that slept takes one page and goes on.
        for name, value in (("memory.limit_in_bytes", "-1"), ("memory.oom_control", "0")):
            with contextlib.suppress(OSError):
                self._write(name, value)

    def close(self) -> None:
        for event in self._events:
            os.close(event)
        self._events = []


class _V2(Kernel):
    """It slows the job down and never stops it, so `at_wall` is never true."""

    files = V2_MEMORY

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._file, self._poll = -1, select.epoll()

    def arm(self, levels: Levels) -> tuple[list[int], list[int]]:
        self.limit(levels.machine)  # what it takes while it is slowed down may not be its neighbours'
        self._write("memory.high", str(levels.press))
        self._file = os.open(self._folder / "memory.events", os.O_RDONLY | os.O_CLOEXEC)
        # The kernel says it as POLLPRI, and epoll turns this into something to read.
        with contextlib.suppress(PermissionError):  # a plain file, with no kernel behind it
            self._poll.register(self._file, select.EPOLLPRI)
        return [], [self._poll.fileno()]

    def hush(self) -> None:
        os.pread(self._file, 4096, 0)

    def at_wall(self) -> bool:
        return False

    def lift(self) -> None:
        for name in (self.files.limit, "memory.high"):
            with contextlib.suppress(OSError):
                self._write(name, "max")

    def close(self) -> None:
        self._poll.close()
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


# ---- The shim's side: the guard


class Guard:
    """Of one job. `pressed` is true from when it had to be frozen until `end`."""

    def __init__(
        self, watch: Callable[[int, Callable[[], None]], None], unwatch: Callable[[int], None], press: Callable[[], object]
    ) -> None:
        """`press` is called when the job is to stand still: it calls `grip` as soon as that can be."""
        self._watch, self._unwatch, self._press = watch, unwatch, press
        self._kernel: Kernel | None = None
        self._cgroup: JobCgroup | None = None
        self._levels: Levels | None = None
        self._walls: list[int] = []
        self._events: list[int] = []  # page cache triggers them without need
        self._look_at: float | None = None
        self._heard_at = 0.0
        self._leader: Owner | None = None
        self.pressed: dict[str, Any] | None = None  # what a status reports of it

    def begin(self, cgroup: JobCgroup | None, levels: list[int] | None, *, freezes: bool = True) -> None:
        """The job runs in `cgroup`; `levels` as `oom_freeze_levels.Levels` has them, None = it is not guarded.

        `freezes`: it is frozen at the press; else the kernel keeps it below the wall, and kills processes of it for that.
        """
        self.end()
        if cgroup is None or not levels or (kernel := kernel_guard(cgroup.folders)) is None:
            return
        self._kernel = kernel
        if not freezes:
            with contextlib.suppress(OSError):  # it holds more than that already
                kernel.limit(Levels(*levels).wall)
            return
        self._cgroup, self._levels = cgroup, Levels(*levels)
        try:
            self._walls, self._events = self._kernel.arm(self._levels)
        except OSError:  # it holds more than that already
            self._walls, self._events = [], []
        for wall in self._walls:
            self._watch(wall, self.look)
        self._listen()
        self.look()

    def end(self) -> None:
        """The job ends, or is let go: nothing of this holds it any more. Idempotent."""
        if self._kernel is not None:
            self._deaf([*self._walls, *self._events])
            self._kernel.lift()
            self._kernel.close()
        self._kernel, self._look_at, self.pressed = None, None, None
        self._walls, self._events = [], []

    @property
    def grips(self) -> bool:
        """The job is to stand still now; if somebody leads its threads, that is waited for."""
        return self.pressed is not None and self._leader is None

    @property
    def seconds(self) -> float | None:
        """Until it has to look again; None = when an event comes."""
        return None if self._look_at is None else max(self._look_at - time.monotonic(), 0.0)

    def look_at_clock(self) -> None:
        """Look, if that is due."""
        if self._look_at is not None and time.monotonic() >= self._look_at:
            self.look()

    def look(self) -> None:
        """Freeze the job if it is time."""
        kernel, levels = self._kernel, self._levels
        if kernel is None or levels is None or self.pressed is not None:
            return
        heard_at = time.monotonic()
        try:
            kernel.hush()
            used, need, at_wall = kernel.used(), kernel.need(), kernel.at_wall()
        except (OSError, ValueError):
            self._deaf([*self._walls, *self._events])  # the group is gone
            return
        if self._events and used < levels.press and not at_wall:
            self._listen()
            return
        wait = judge(need, levels, at_wall)
        if wait is None:
            self._heard_at = heard_at
            self._deaf([*self._walls, *self._events])
            self.pressed = {
                "machine_bytes": levels.machine,
                "limit_bytes": levels.press,
                "used_bytes": need,
                "stop_seconds": 0.0,
            }
            self._press()
        else:  # page cache: it would call us all the time
            self._deaf(self._events)
            self._look_at = heard_at + wait

    def grip(self) -> None:
        """Stop the job, including processes that sleep for want of memory. Idempotent. Raises OSError."""
        if self._cgroup is None or self._kernel is None or self.pressed is None or not self.grips:
            return
        self._cgroup.ask_to_freeze()
        self._kernel.lift()  # a process that sleeps at the wall can't be frozen: it takes a page and stops there
        self._cgroup.freeze()
        if not self.pressed["stop_seconds"]:
            self.pressed["stop_seconds"] = time.monotonic() - self._heard_at

    def lead(self, owner: Owner) -> dict[str, Any]:
        """`owner` leads threads of the job through calls, which a frozen job would never end: freeze it afterwards.

        The wall stands meanwhile.
        """
        if self.pressed is None:
            self._leader = owner
        return {"still": self.pressed is not None}

    def left(self, owner: Owner) -> None:
        """A connection broke, or ended: its owner leads nobody any more."""
        if self._leader is owner:
            self._leader = None
            if self.pressed is not None:
                self._press()

    def freezer(self) -> list[str]:
        """Arguments for a CRIU that dumps a job that we hold: it takes it over without letting it run."""
        return ["--freeze-cgroup", self._cgroup.freezer] if self._cgroup is not None and self.pressed is not None else []

    def _listen(self) -> None:
        self._look_at = None
        for event in self._events:
            self._watch(event, self.look)
        if not self._events:
            self._look_at = time.monotonic() + LOOK_SECONDS[0]

    def _deaf(self, events: list[int]) -> None:
        self._look_at = None
        for event in events:
            with contextlib.suppress(KeyError):
                self._unwatch(event)
