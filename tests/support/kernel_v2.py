"""Control groups v2 in files: what the kernel does with what the wire's `linux.cgroups` writes.

A group has a controller's files only if the one above hands it on; a group with processes of its own, the top of all excepted,
hands on none (EBUSY) but threaded ones: that makes it threaded, and groups in it take no process. A group that was made has its
files from the next read or write on.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from spotsurfer_wire.linux import cgroups

PLAIN = ("cgroup.freeze", "cgroup.events", "cgroup.procs", "cgroup.controllers", "cgroup.subtree_control", "cpu.stat")
THREADED = ("cpu", "pids")
OF = {
    "memory": ("memory.high", "memory.current", "memory.stat", "memory.events", "memory.max"),
    "cpu": ("cpu.max",),
    "io": ("io.stat",),
    "pids": ("pids.max",),
}


class KernelV2:
    """A hierarchy at `top`. `unseen` are groups in which a process of another pid namespace is."""

    def __init__(self, top: Path, controllers: str, monkeypatch: pytest.MonkeyPatch, *, real_top: bool = True) -> None:
        self.top, self._controllers, self._real_top = top, controllers.split(), real_top
        self.unseen: set[Path] = set()
        self._threaded: set[Path] = set()
        top.mkdir(parents=True, exist_ok=True)
        self._read, self._write = cgroups.read, cgroups.write
        monkeypatch.setattr(cgroups, "read", self._reads)
        monkeypatch.setattr(cgroups, "write", self._writes)
        self.sync()

    def sync(self) -> None:
        """Each folder has the files that it would have."""
        for folder in (self.top, *sorted(p for p in self.top.rglob("*") if p.is_dir())):
            have = self._controllers if folder == self.top else self._words(folder.parent, "cgroup.subtree_control")
            names = [*PLAIN, *(() if self._top(folder) else ("cgroup.type", *(f for c in have for f in OF[c])))]
            for name in names:
                if not (folder / name).exists():
                    (folder / name).write_text("")
            (folder / "cgroup.controllers").write_text(" ".join(have))

    def enter(self, folder: Path, *pids: int) -> None:
        """Processes begin there."""
        self.sync()
        procs = folder / "cgroup.procs"
        procs.write_text("\n".join([*procs.read_text().split(), *map(str, pids)]))

    def pids(self, folder: Path) -> list[int]:
        """Processes in a group itself."""
        return [int(x) for x in self._words(folder, "cgroup.procs")]

    def _words(self, folder: Path, name: str) -> list[str]:
        return (folder / name).read_text().split()

    def _reads(self, file: Path) -> str:
        self.sync()
        seen = self._read(file)
        return f"0\n{seen}" if file.name == "cgroup.procs" and file.parent in self.unseen else seen

    def _writes(self, file: Path, value: str) -> None:
        self.sync()
        folder = file.parent
        if file.name == "cgroup.subtree_control":
            self._hand_on(folder, value)
        elif file.name == "cgroup.procs":
            if self._words(folder, "cgroup.subtree_control") and not self._top(folder):
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(file))
            if folder.parent in self._threaded:
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), str(file))
            for procs in self.top.rglob("cgroup.procs"):
                procs.write_text("\n".join(x for x in procs.read_text().split() if x != value))
            self.enter(folder, int(value))
        else:
            self._write(file, value)
        self.sync()

    def _hand_on(self, folder: Path, value: str) -> None:
        assert value.startswith("+")
        if value[1:] not in self._words(folder, "cgroup.controllers"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        if not self._top(folder) and (self.pids(folder) or folder in self.unseen):
            if value[1:] not in THREADED:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(folder))
            self._threaded.add(folder)
        control = folder / "cgroup.subtree_control"
        control.write_text(" ".join([*control.read_text().split(), value[1:]]))

    def _top(self, folder: Path) -> bool:
        return folder == self.top and self._real_top
