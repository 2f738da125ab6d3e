"""Boxes for tests: a provider in a folder of its own, and proof that nothing of it is left."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotsurfer_providers.local import manual_control
from spotsurfer_providers.local.box.cgroups import PARENT, host_hierarchies
from spotsurfer_providers.local.box.records import Home
from spotsurfer_providers.local.provider import LocalProvider
from spotsurfer_providers.local.settings import read_settings
from support import levels
from support.patience import FACTOR

from spotsurfer.model.market import Market
from spotsurfer.ports.clock import SystemClock
from spotsurfer.ports.provider import InstanceState, InstanceView, LaunchPlan, ProviderHost

TAGS = {"spotsurfer:job": "job-a", "spotsurfer:attempt": "3", "Name": "a box"}
DISK_BYTES = 1 << 30


@dataclass
class Yard:
    """A provider whose data folder and store lie in `path`."""

    path: Path
    provider: LocalProvider

    @property
    def store(self) -> Path:
        """The folder that the boxes' gateways serve."""
        return self.path / "store"

    def plan(self, user_data: str, market: Market = Market.SPOT, tags: Mapping[str, str] | None = None) -> LaunchPlan:
        """An order for the first pool."""
        pool = self.provider.offers()[0].pool
        return LaunchPlan(secrets.token_hex(16), pool, market, user_data, TAGS if tags is None else tags)

    def launch(self, script: str, market: Market = Market.SPOT, tags: Mapping[str, str] | None = None) -> InstanceView:
        """A box that runs a shell script as user-data; it is up when this returns."""
        view = self.provider.launch(self.plan(f"#!/bin/bash\n{script}\n", market, tags))
        self.wait_for(lambda: self.view(view.id).state is not InstanceState.PENDING, f"start: {self.log(view.id)}")
        return self.view(view.id)

    def view(self, box: str) -> InstanceView:
        """What the provider says of a box now."""
        return next(v for v in self.provider.describe().instances if v.id == box)

    def reason(self, box: str) -> str:
        """Why a box ended."""
        return str(next(r for r in manual_control.list_boxes(self.path) if r["id"] == box)["reason"])

    def folder(self, box: str) -> Path:
        """A box's files."""
        return Home(self.path).folder(box).path

    def console(self, box: str) -> str:
        """What a box printed."""
        file = self.folder(box) / "console.log"
        return file.read_text() if file.exists() else ""

    def log(self, box: str) -> str:
        """What its supervisor printed: empty when all went well."""
        file = self.folder(box) / "supervisor.log"
        return file.read_text() if file.exists() else ""

    def supervisor(self, box: str) -> int:
        """Process id of a box's supervisor: the one that has its folder as an argument."""
        found: list[int] = []

        def look() -> bool:  # more than once: for a moment after its start a process shows no arguments
            commands = {p: _read(p).split("\0") for p in Path("/proc").glob("[0-9]*/cmdline")}
            mine = [p for p, c in commands.items() if str(self.folder(box)) in c]
            found.extend(int(p.parent.name) for p in mine)
            return bool(found)

        self.wait_for(look, f"the supervisor of {box}", 2)
        return found[0]

    def inner_pid(self, box: str) -> int:
        """Process 1 of a box, seen from the host."""
        pid = manual_control.box_status(self.path, box)["pid"]
        assert isinstance(pid, int)
        return pid

    def wait_console(self, box: str, text: str, seconds: float = 10.0) -> str:
        """The console as soon as it contains `text`."""
        self.wait_for(lambda: text in self.console(box), f"{text!r} in: {self.console(box)}", seconds)
        return self.console(box)

    def wait_gone(self, box: str, seconds: float = 10.0) -> InstanceView:
        """The box when it has ended."""
        self.wait_for(lambda: self.view(box).state is InstanceState.GONE, f"end of {box}", seconds)
        return self.view(box)

    @staticmethod
    def wait_for(good: Callable[[], bool], what: str, seconds: float = 10.0) -> None:
        """Return as soon as `good`; fail with `what` when that takes too long."""
        until = time.monotonic() + seconds * FACTOR
        while not good():
            assert time.monotonic() < until, f"waited {seconds * FACTOR} s in vain for {what}"
            time.sleep(0.02)

    def leftovers(self) -> list[str]:
        """Everything on this host that belongs to boxes of this yard, but for its files."""
        home = Home(self.path)
        groups = [str(p) for t in host_hierarchies() for p in (t.path / PARENT).glob(f"*-{home.mark}")]
        mine = str(self.path)
        loops = [str(p) for p in Path("/sys/block").glob("loop*/loop/backing_file") if _read(p).startswith(f"{mine}/")]
        mounts = [x for x in _read(Path("/proc/self/mountinfo")).splitlines() if mine in x]
        processes = [str(p) for p in Path("/proc").glob("[0-9]*/cmdline") if mine in _read(p)]
        return groups + loops + mounts + processes

    def assert_clean(self, seconds: float = 5.0) -> None:
        """Fail where anything is left; the kernel may take a moment to free a disk."""
        until = time.monotonic() + seconds * FACTOR
        while left := self.leftovers():
            assert time.monotonic() < until, f"left behind: {left}"
            time.sleep(0.02)


@contextmanager
def yard(path: Path, **settings: Any) -> Iterator[Yard]:
    """A provider in `path`; at the end all its boxes are ended and nothing may be left."""
    levels.only_for_real_tests("boxes")
    (path / "store").mkdir(parents=True, exist_ok=True)
    host = ProviderHost("test", path, f"file://{path}/store", SystemClock())
    made = Yard(path, LocalProvider(read_settings({"disk_bytes": DISK_BYTES, **settings}), host))
    try:
        yield made
    finally:
        manual_control.clean(path, end_living=True)
        made.provider.describe()  # takes note of supervisors that ended
    made.assert_clean()


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
