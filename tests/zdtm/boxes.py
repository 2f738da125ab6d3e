"""Boxes for batches of programs; what an interrupted run left of them is cleared away by the next."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from support.minibox import CGROUPS, Minibox
from zdtm.program import Program
from zdtm.verdict import Seen

DISK_BYTES = 3 << 30
BOX_SECONDS = 2400.0  # a batch; each program has its own limit inside
Batch = Sequence[tuple[Program, Seen]]


class Pair:
    """Two machines that take turns: programs are saved on one and restored on the other. `folder` is this pair's alone."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder, self._say = folder, say
        self._boxes: dict[str, Minibox] = {}
        self._store = folder / "store"

    def play(self, batch: Batch) -> list[Seen]:
        """The programs through both boxes."""
        for old in self._store.glob("*"):
            shutil.rmtree(old)
        saved = self.scene("first", batch)
        return self.scene("second", [(p, s) for (p, _), s in zip(batch, saved, strict=True)])

    def scene(self, scene: str, batch: Batch) -> list[Seen]:
        """One scene with each, in the box of that scene; a box in which one hung or broke is given up for a fresh one."""
        done: dict[str, Seen] = {}  # by key
        while left := [(p, s) for p, s in batch if p.key not in done]:
            found, whole = self._boot(scene, left)
            if not found:
                program, seen = left[0]
                seen.broken = seen.broken or f"the box of the scene {scene!r} ended without a word"
                found = {program.key: seen}
            if not whole:
                self._give_up(scene)
            done.update(found)
        return [done[p.key] for p, _ in batch]

    def _boot(self, scene: str, batch: Batch) -> tuple[dict[str, Seen], bool]:
        here = self._folder / scene
        shutil.rmtree(here / "seen", ignore_errors=True)
        if scene not in self._boxes:
            self._boxes[scene] = Minibox(here, self._store, disk_bytes=DISK_BYTES, module="zdtm.scenes")
        (here / "batch.json").write_text(json.dumps([(p.text(), asdict(s)) for p, s in batch]))
        whole = True
        try:
            self._boxes[scene].run(scene, timeout_seconds=BOX_SECONDS)
        except (AssertionError, subprocess.TimeoutExpired) as e:
            whole = False
            self._say(f"   a box broke: {str(e)[:300]}")
        found = {x.stem: Seen(**json.loads(x.read_text())) for x in (here / "seen").glob("*.json")}
        return found, whole and len(found) == len(batch)

    def _give_up(self, scene: str) -> None:
        box = self._boxes.pop(scene)
        thaw(box._name)
        for path in (self._folder / scene).glob("*.traceback"):
            shutil.copy(path, self._folder.parent)
        with contextlib.suppress(subprocess.CalledProcessError, OSError):
            box.close()

    def close(self) -> None:
        """Give both back."""
        for scene in list(self._boxes):
            self._give_up(scene)
        shutil.rmtree(self._folder, ignore_errors=True)


def clean(folder: Path) -> None:
    """Nothing of an earlier run that used this folder is left: processes, loop devices, control groups, files."""
    for disk in folder.rglob("minibox-*.disk"):
        name = disk.name.removesuffix(".disk")
        thaw(name)
        _kill(name)
        ask = ["losetup", "--noheadings", "--output", "NAME", "--associated", str(disk)]
        used = subprocess.run(ask, capture_output=True, text=True, check=False)
        for device in used.stdout.split():
            subprocess.run(["losetup", "--detach", device], check=False)
        for root in CGROUPS.glob(f"*/{name}"):
            for group in [*sorted(root.rglob("*"), reverse=True), root]:
                if group.is_dir():
                    with contextlib.suppress(OSError):
                        group.rmdir()
    shutil.rmtree(folder, ignore_errors=True)


def thaw(name: str) -> None:
    """What is frozen in a box can't be ended."""
    for state in (CGROUPS / "freezer" / name).rglob("freezer.state"):
        with contextlib.suppress(OSError):
            state.write_text("THAWED")


def _kill(name: str) -> None:
    for _ in range(50):
        pids = {
            int(x)
            for root in CGROUPS.glob(f"*/{name}")
            for procs in root.rglob("cgroup.procs")
            for x in procs.read_text().split()
        }
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)
