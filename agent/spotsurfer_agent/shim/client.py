"""The agent's client of a job's shim: starts it, asks it, and knows the control groups of job and tools."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import threading
import time
from functools import cached_property
from pathlib import Path
from typing import Any

from spotsurfer_wire.linux import memory
from spotsurfer_wire.oom_freeze_levels import Levels

from spotsurfer_agent.host import cgroup, shim_protocol
from spotsurfer_agent.host.cgroup import JobCgroup
from spotsurfer_agent.host.tools import Tools
from spotsurfer_agent.ports.engine import EngineError

SHIM_START_SECONDS = 20.0
ASK_SECONDS = 120.0
LOOK_SECONDS = 0.005
GROUPS = "cgroup.json"


class ShimClient:
    """Starts, asks and ends the shim."""

    def __init__(self, base: Path, tools: Tools) -> None:
        self._base, self._tools, self._folder = base, tools, base / "job"
        self._group: JobCgroup | None = None
        self._shim: subprocess.Popen[bytes] | None = None  # of a job that is here, or standing by
        self._stands_by = False  # it has had no job yet
        self._part: int | None = None  # of the machine's memory, as the shim was told; None = all of it
        self._starting = threading.Lock()  # waiting for a job and bringing it are work of different threads

    def ask(self, verb: str, **arguments: object) -> dict[str, Any]:
        """One question. Raises shim_protocol.ShimGone, shim_protocol.ShimRefused."""
        return shim_protocol.ask(self._folder, verb, ASK_SECONDS, **arguments)

    def resources(self, *, guarded: bool) -> dict[str, object]:
        """What a start or restore tells the shim of this machine."""
        return {"tools": dataclasses.asdict(self._tools), "cgroup": self.cgroup().folders, **self._limits(guarded=guarded)}

    def _limits(self, *, guarded: bool) -> dict[str, object]:
        """What the job may have of the machine's memory; `guarded`: it is frozen before that ends, else the kernel kills it."""
        self._part = memory.part_bytes(self._base)
        if self._part is None and not guarded:
            return {"guard": None}
        return {"guard": dataclasses.astuple(Levels.of(self.memory_bytes())), "freezes": guarded}

    def memory_bytes(self) -> int:
        """Of the machine, or the part of it that is for this job and its agent."""
        part, whole = memory.part_bytes(self._base), memory.whole_bytes()
        return whole if part is None else min(part, whole)

    def keep_to_part(self, *, guarded: bool) -> None:
        """Tell the shim if the job's part of the memory has changed. One of an earlier version can't follow."""
        if memory.part_bytes(self._base) != self._part:
            with contextlib.suppress(shim_protocol.ShimGone, shim_protocol.ShimRefused):
                self.ask("guard", **self._limits(guarded=guarded))

    def cgroup(self) -> JobCgroup:
        """The job's control group: the one in use; before `spawn`, the one that a shim in our own group would have."""
        if self._group is None or not self._group.exists():
            used = shim_protocol.read_json(self._folder / GROUPS)
            self._group = JobCgroup(used) if used is not None and JobCgroup(used).exists() else None
        return self._group or self._below_us

    @cached_property
    def _below_us(self) -> JobCgroup:
        """The group that a shim in ours would have; cached, because an agent without a job asks at each look."""
        return JobCgroup.below_own(self._name())

    def _name(self) -> str:
        st = self._base.stat()
        return f"spotsurfer-{st.st_dev:x}-{st.st_ino:x}"

    def tool_group(self) -> JobCgroup:
        """CRIU's own group while it dumps, so that it can be found when the shim is gone."""
        return _of_tools(self.cgroup())

    def stand_by(self) -> None:
        """Have a shim ready for the next `spawn`; it ends with us as long as it has nothing to do. Raises OSError."""
        with self._starting:
            if self._shim is None or self._shim.poll() is not None:
                self._shim, self._stands_by = self._started(), True

    def spawn(self) -> None:
        """A shim for this job; returns when it answers. Raises OSError, shim_protocol.ShimGone."""
        for name in (shim_protocol.EXIT, shim_protocol.STARTED):
            (self._folder / name).unlink(missing_ok=True)
        with self._starting:
            self._stands_by = False
            if self._shim is None or not self._answers(self._shim):
                self._shim = self._started()
                if not self._answers(self._shim):
                    raise shim_protocol.ShimGone(f"the job's keeper did not come up: see {self._folder}/shim.log")
            self._make_groups(self._shim.pid)

    def _started(self) -> subprocess.Popen[bytes]:
        prefix = cgroup.scope_prefix("job")
        with (self._folder / "shim.log").open("ab") as log:
            return subprocess.Popen(
                [*prefix, *self._tools.python, "-m", "spotsurfer_agent.shim", str(self._base), str(os.getpid())],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True,
            )  # fmt: skip

    def _answers(self, shim: subprocess.Popen[bytes]) -> bool:
        """Wait until it does; False if it ended, or never will."""
        end = time.monotonic() + SHIM_START_SECONDS
        while shim.poll() is None and time.monotonic() < end:
            with contextlib.suppress(shim_protocol.ShimGone):
                if self.ask("hello")["pid"] == shim.pid:
                    return True
            time.sleep(LOOK_SECONDS)
        return False

    def _make_groups(self, shim: int) -> None:
        """The job's groups are below the shim's, which may be in a scope of its own.

        Other threads ask for them meanwhile: they count as those in use only once they exist.
        """
        group = JobCgroup.below_own(self._name(), str(shim))
        group.create()
        _of_tools(group).create()
        shim_protocol.write_durably(self._folder / GROUPS, group.folders)
        self._group = group

    def kill(self) -> None:
        """Kill the processes of job, tools and shim; one that stands by goes on to. Raises EngineError if some hang."""
        with contextlib.suppress(shim_protocol.ShimGone, shim_protocol.ShimRefused):
            if not self._stands_by:
                self.ask("kill")
        for group in (self.cgroup(), self.tool_group()):
            if not group.kill():
                raise EngineError("save", "some processes of the job can't be killed: they hang in the kernel")
            group.remove()
        if self._shim is not None and not self._stands_by:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._shim.wait(10.0)
            self._shim = None

    def forget(self) -> None:
        """The groups are gone: the next job gets new ones."""
        (self._folder / GROUPS).unlink(missing_ok=True)
        self._group = None


def _of_tools(group: JobCgroup) -> JobCgroup:
    return JobCgroup({name: folder + "-tools" for name, folder in group.folders.items()})
