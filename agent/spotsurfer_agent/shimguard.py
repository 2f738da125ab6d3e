"""The guard against the end of memory as the shim keeps it: it works with no agent there, and sleeps while all is well."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from spotsurfer_agent import oomguard
from spotsurfer_agent.cgroup import JobCgroup
from spotsurfer_agent.memlevels import Levels
from spotsurfer_agent.oomguard import Kernel
from spotsurfer_agent.shimruns import Owner


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
        self._events: list[int] = []  # page cache makes them speak without need
        self._look_at: float | None = None
        self._heard_at = 0.0
        self._leader: Owner | None = None
        self.pressed: dict[str, Any] | None = None  # what status tells of it

    def begin(self, cgroup: JobCgroup | None, levels: list[int] | None) -> None:
        """The job runs in `cgroup`; `levels` as `oomguard.Levels` has them, None = it is not guarded."""
        self.end()
        if cgroup is None or not levels or (kernel := oomguard.kernel(cgroup.folders)) is None:
            return
        self._kernel = kernel
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

    @property
    def grips(self) -> bool:
        """It is to stand still now; who leads its threads is waited for."""
        return self.pressed is not None and self._leader is None

    @property
    def seconds(self) -> float | None:
        """Until it has to look again; None = when it is told."""
        return None if self._look_at is None else max(self._look_at - time.monotonic(), 0.0)

    def look_at_clock(self) -> None:
        """Look, if that is due."""
        if self._look_at is not None and time.monotonic() >= self._look_at:
            self.look()

    def look(self) -> None:
        """Is it time?"""
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
        wait = oomguard.judge(need, levels, at_wall)
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
        """Stand still, whoever sleeps for want of memory, too. Idempotent. Raises OSError."""
        if self._cgroup is None or self._kernel is None or self.pressed is None or not self.grips:
            return
        self._cgroup.ask_to_freeze()
        self._kernel.lift()  # who sleeps at the wall can't be frozen: it takes a page and stops there
        self._cgroup.freeze()
        if not self.pressed["stop_seconds"]:
            self.pressed["stop_seconds"] = time.monotonic() - self._heard_at

    def lead(self, owner: Owner) -> dict[str, Any]:
        """Somebody leads threads of it through calls, which one that is frozen would never end: freeze it afterwards.

        The wall stands meanwhile.
        """
        if self.pressed is None:
            self._leader = owner
        return {"still": self.pressed is not None}

    def left(self, owner: Owner) -> None:
        """A connection broke, or ended: whose it was leads nobody any more."""
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
            self._look_at = time.monotonic() + oomguard.LOOK_SECONDS[0]

    def _deaf(self, events: list[int]) -> None:
        self._look_at = None
        for event in events:
            with contextlib.suppress(KeyError):
                self._unwatch(event)
