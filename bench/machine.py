"""Small machines for the benchmark: namespaces, a disk of their own, and what their scenes found."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spotsurfer_agent.criu import images
from spotsurfer_agent.gpu import suspend_resume
from spotsurfer_agent.host.tools import beside
from spotsurfer_agent.save.memory_reserve import Reserve
from spotsurfer_wire.linux.memory import free_bytes
from support.minibox import minibox
from support.tree import ROOT

from bench.order import Order

WORK = ROOT / "build" / "bench"
SCENE_SECONDS = 1200.0
PIPES = Path("/proc/sys/fs/pipe-max-size")
ALWAYS, ON_REQUEST = "always", "madvise"  # its values: as Debian and Red Hat have it, and as Ubuntu and Amazon Linux 2023 do
REPORTING, NEVER = Path("/sys/module/page_reporting/parameters/page_reporting_order"), "11"  # above the largest order
Figures = dict[str, Any]


def build_job() -> Path:
    """The job of `bench/jobs/job.c` as a program."""
    WORK.mkdir(parents=True, exist_ok=True)
    program = WORK / "job"
    source = ROOT / "bench/jobs/job.c"
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-pthread", "-o", str(program), str(source)], check=True)
    return program


def scene(order: Order, name: str, *arguments: object, more_disk_bytes: int = 0, fs: str = "btrfs") -> Figures:
    """Play a scene on a fresh machine, with a disk of this kind for the job's files; returns the figures that it wrote."""
    program = build_job()
    order.work.mkdir(parents=True, exist_ok=True)
    _spread(order.work)
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=order.work) as at:
        box, store = Path(at, "box"), Path(at, "store")
        with minibox(box, store, fs, order.disk + more_disk_bytes, module="bench.scenes") as machine:
            shutil.copy(program, box / "job")
            with _progress(box / "progress", name):
                machine.run(str(order.rounds), name, *arguments, timeout_seconds=SCENE_SECONDS)
            return dict(json.loads((box / "figures.json").read_text()))


def _spread(folder: Path) -> None:
    """Let ext4 put each folder in here elsewhere on the disk (chattr(1), T); another file system needs no such thing.

    Where many files were removed lately, ext4 looks at each of them whenever it makes one: a save that makes thousands took a
    tenth longer when the scene before it, or anybody, had just cleaned up nearby.
    """
    subprocess.run(["chattr", "+T", str(folder)], stderr=subprocess.DEVNULL, check=False)


@contextlib.contextmanager
def wide_pipes() -> Iterator[int]:
    """Let pipes be as large as the agent wants them, for a while; their size. As root of its machine it may always."""
    wanted = max(images.PIPE_BYTES, int(PIPES.read_text()))
    with _set(PIPES, str(wanted)):
        yield int(PIPES.read_text())


@contextlib.contextmanager
def huge_pages(setting: str) -> Iterator[bool]:
    """Transparent huge pages as said, for a while; whether that could be done.

    CRIU's plain restore takes more than twice as long without them: a ratio says little unless it is known how they were set.
    """
    with _set(suspend_resume.SETTING, setting) as done:
        yield done


def huge_pages_now() -> str:
    """How they are set; "none" where this kernel has none."""
    return suspend_resume.huge_page_setting() or "none"


def other_huge_pages() -> str:
    """How other machines have them."""
    return ON_REQUEST if huge_pages_now() == ALWAYS else ALWAYS


@contextlib.contextmanager
def kept_memory() -> Iterator[bool]:
    """Keep this machine from giving free memory back to its host for a while, and touch it once; whether that could be done.

    A first touch of memory that the host has taken back costs ten times as much as any other. It hits both sides of a ratio at
    random, and no machine that owns its memory knows it.
    """
    with _set(REPORTING, NEVER) as done:
        if done:
            touched = free_bytes() * 3 // 4
            Reserve(touched, touched).close()
        yield done


@contextlib.contextmanager
def _set(setting: Path, value: str) -> Iterator[bool]:
    """A setting of the kernel has this value for a while; False where it is not there or can't be changed."""
    try:
        before = suspend_resume.chosen(setting.read_text())
        setting.write_text(value)
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        setting.write_text(before)


@contextlib.contextmanager
def _progress(path: Path, name: str) -> Iterator[None]:
    """Print what a scene says while it plays."""
    path.touch()

    def follow(over: threading.Event) -> None:
        with path.open() as f:
            while True:
                last = over.is_set()
                for line in f.read().splitlines():
                    print(f"   {name}: {line}", flush=True)
                if last or (over.wait(0.5) and last):
                    return

    with beside(follow, "progress"):
        yield
