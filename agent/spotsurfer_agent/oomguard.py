"""The kernel stops a job before its machine's memory ends: two levels on the job's control group, v1 or v2.

At `press` the job is to be frozen. v1: an event when usage crosses it; and at `wall`, a little above, the kernel puts whoever
touches new memory to sleep (`oom_kill_disable`) and says so, however fast it came there. v2: above `memory.high` the kernel
slows the job down to a crawl, and says so. Page cache counts as usage but gives way, so a crossing is looked at before it is
believed; while the cache alone fills the group, we look again before the fastest job could have come there.

v2 was tried on Linux 6.1 in a virtual machine: still a third of a second after, 0.7 MiB above. Sources: the kernel's
cgroup-v1/memory.rst (sections 9, 10) and cgroup-v2.rst.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from spotsurfer_agent.cgplaces import UNIFIED, V1_MEMORY, V2_MEMORY
from spotsurfer_agent.memlevels import TRUE_SHARE, Levels

FASTEST_BYTES_PER_SECOND = 4 << 30
LOOK_SECONDS = (0.01, 1.0)  # between looks while the page cache fills the group


def judge(need: int, levels: Levels, at_wall: bool) -> float | None:
    """None = freeze it now; else so many seconds until it could be time. Pure. `need`: usage without page cache."""
    if at_wall or need >= TRUE_SHARE * levels.press:
        return None
    least, most = LOOK_SECONDS
    return min(max((levels.press - need) / FASTEST_BYTES_PER_SECOND, least), most)


class Kernel(Protocol):
    """What guards a group."""

    def arm(self, levels: Levels) -> tuple[list[int], list[int]]:
        """Set the levels; descriptors that can be read when somebody is at the wall, and when usage is at the press.

        Raises OSError.
        """
        ...

    def hush(self) -> None:
        """What the descriptors said was heard."""
        ...

    def need(self) -> int:
        """Bytes that the group holds, page cache not counted. Raises OSError, ValueError."""
        ...

    def used(self) -> int:
        """All that it holds. Raises OSError, ValueError."""
        ...

    def at_wall(self) -> bool:
        """Somebody of it sleeps for want of memory."""
        ...

    def lift(self) -> None:
        """No level holds any more. Idempotent."""
        ...

    def close(self) -> None:
        """Forget the events; the levels stay."""
        ...


def kernel(folders: Mapping[str, str]) -> Kernel | None:
    """For the groups of a job (`cgroup.JobCgroup`); None where the kernel counts no memory in them."""
    if UNIFIED in folders:
        folder = Path(folders[UNIFIED])
        return Unified(folder) if (folder / "memory.high").exists() else None
    folder = Path(folders.get("memory", "/nowhere"))
    return Old(folder) if (folder / "memory.oom_control").exists() else None


class Old:
    """v1."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._events: list[int] = []

    def arm(self, levels: Levels) -> tuple[list[int], list[int]]:
        """As the port says; the kernel refuses levels below what it holds already."""
        self._write("memory.oom_control", "1")
        self._write("memory.limit_in_bytes", str(levels.wall))
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
        """As the port says."""
        for event in self._events:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(event)

    def need(self) -> int:
        """As the port says."""
        return self.used() - V1_MEMORY.page_cache(self._folder)

    def used(self) -> int:
        """As the port says."""
        return int((self._folder / V1_MEMORY.used).read_text())

    def at_wall(self) -> bool:
        """As the port says."""
        return "under_oom 1" in (self._folder / "memory.oom_control").read_text()

    def lift(self) -> None:
        """As the port says. Who slept takes one page and goes on."""
        with contextlib.suppress(OSError):
            self._write("memory.limit_in_bytes", "-1")
        with contextlib.suppress(OSError):
            self._write("memory.oom_control", "0")

    def close(self) -> None:
        """As the port says."""
        for event in self._events:
            os.close(event)
        self._events = []

    def _write(self, name: str, value: str) -> None:
        (self._folder / name).write_text(value)


class Unified:
    """v2. It slows down and never stops, so `at_wall` is never true."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, -1
        self._poll: select.epoll | None = None

    def arm(self, levels: Levels) -> tuple[list[int], list[int]]:
        """As the port says."""
        (self._folder / "memory.high").write_text(str(levels.press))
        self._file = os.open(self._folder / "memory.events", os.O_RDONLY | os.O_CLOEXEC)
        self._poll = select.epoll()  # the kernel says it as POLLPRI, and this turns it into something to read
        with contextlib.suppress(PermissionError):  # a plain file, where no kernel is behind
            self._poll.register(self._file, select.EPOLLPRI)
        return [], [self._poll.fileno()]

    def hush(self) -> None:
        """As the port says."""
        os.pread(self._file, 4096, 0)

    def need(self) -> int:
        """As the port says."""
        return self.used() - V2_MEMORY.page_cache(self._folder)

    def used(self) -> int:
        """As the port says."""
        return int((self._folder / V2_MEMORY.used).read_text())

    def at_wall(self) -> bool:
        """As the port says."""
        return False

    def lift(self) -> None:
        """As the port says."""
        with contextlib.suppress(OSError):
            (self._folder / "memory.high").write_text("max")

    def close(self) -> None:
        """As the port says."""
        if self._poll is not None:
            self._poll.close()
            os.close(self._file)
        self._poll, self._file = None, -1
