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

from spotsurfer_agent import imagewire
from spotsurfer_agent.threads import beside
from support.minibox import minibox
from support.tree import ROOT

WORK = ROOT / "build" / "bench"
SCENE_SECONDS = 1200.0
DISK_BYTES_MIN = 4 << 30
Figures = dict[str, Any]


def build_job() -> Path:
    """The job of `bench/jobs/job.c` as a program."""
    WORK.mkdir(parents=True, exist_ok=True)
    program = WORK / "job"
    source = ROOT / "bench/jobs/job.c"
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-pthread", "-o", str(program), str(source)], check=True)
    return program


def scene(name: str, *arguments: object, disk_bytes: int = DISK_BYTES_MIN) -> Figures:
    """Play a scene on a fresh machine; returns the figures that it wrote."""
    program = build_job()
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=WORK) as at:
        box, store = Path(at, "box"), Path(at, "store")
        with minibox(box, store, disk_bytes=disk_bytes, module="bench.scenes") as machine:
            shutil.copy(program, box / "job")
            with _progress(box / "progress", name):
                machine.run(name, *arguments, timeout_seconds=SCENE_SECONDS)
            return dict(json.loads((box / "figures.json").read_text()))


@contextlib.contextmanager
def wide_pipes() -> Iterator[int]:
    """Let pipes be as large as the agent wants them, for a while; their size. As root of its machine it may always."""
    setting = Path("/proc/sys/fs/pipe-max-size")
    before = setting.read_text()
    try:
        if int(before) < imagewire.PIPE_BYTES:
            with contextlib.suppress(OSError):
                setting.write_text(str(imagewire.PIPE_BYTES))
        yield int(setting.read_text())
    finally:
        if setting.read_text() != before:
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
