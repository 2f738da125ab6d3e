"""Ways in which a store, a disk or a machine fails, for the scenes of `support.fault_scenes`."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from spotsurfer_agent.store import StoreDenied, StoreError
from support.engine_kit import BASE

STORE = Path("/run/store")
DATA = ("chunks/", "packs/")  # what a job's bytes lie in, below its folder


class Failing:
    """A store whose writes go through `write` first, which may raise."""

    def __init__(self, inner: Any, write: Callable[[str], None] = lambda _: None) -> None:
        self.inner, self.write = inner, write

    def create(self, key: str, data: bytes) -> bool:
        self.write(key)
        return bool(self.inner.create(key, data))

    def create_later(self, key: str, data: bytes) -> bool:
        self.write(key)
        return bool(self.inner.create_later(key, data))

    def put(self, key: str, data: bytes) -> None:
        self.write(key)
        self.inner.put(key, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def refuse(key: str) -> None:
    raise StoreDenied(f"{key}: 403 Forbidden")


def time_out(key: str) -> None:
    time.sleep(1.0)
    raise StoreError(f"{key}: operation timed out")


def objects() -> dict[Path, bytes]:
    """The objects of the store that hold a job's bytes."""
    found = [p for p in STORE.glob("jobs/*/**/*") if p.is_file() and p.relative_to(STORE).parts[2] + "/" in DATA]
    return {p: p.read_bytes() for p in found}


def flip_bits(path: Path, data: bytes) -> None:
    middle = len(data) // 2
    path.write_bytes(data[:middle] + bytes([data[middle] ^ 0x10]) + data[middle + 1 :])


def cut_short(path: Path, data: bytes) -> None:
    path.write_bytes(data[: len(data) // 2])


def empty(path: Path, data: bytes) -> None:
    path.write_bytes(b"")


def lose(path: Path, data: bytes) -> None:
    path.unlink()


def swap(path: Path, data: bytes) -> None:
    """Another object under this name: whole, well formed, and wrong."""
    other = next(p for p in sorted(objects()) if p != path and p.parent.parent.name == path.parent.parent.name)
    path.write_bytes(other.read_bytes())


LIES: dict[str, Callable[[Path, bytes], None]] = {
    "bits_flipped": flip_bits,
    "cut_short": cut_short,
    "empty": empty,
    "missing": lose,
    "another_object": swap,
}


@contextlib.contextmanager
def read_only_store() -> Iterator[None]:
    """The store's file system itself."""
    _run("mount", "-o", "remount,bind,ro", str(STORE))
    try:
        yield
    finally:
        _run("mount", "-o", "remount,bind,rw", str(STORE))


@contextlib.contextmanager
def small_store(size_bytes: int) -> Iterator[Path]:
    """A store on a file system with so much room."""
    place = Path("/run/small")
    place.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "small", str(place))
    try:
        yield place
    finally:
        _run("umount", "--lazy", str(place))


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """The machine's own disk, filled to the last block."""
    filler = BASE / "filler"
    for size in (1 << 30, 64 << 20, 4 << 20, 256 << 10, 4096):
        with filler.open("ab", buffering=0) as f, contextlib.suppress(OSError):
            while True:
                os.posix_fallocate(f.fileno(), os.fstat(f.fileno()).st_size, size)
        os.sync()
    assert shutil.disk_usage(BASE).free < 32 << 20
    try:
        yield
    finally:
        filler.unlink()
        os.sync()


def mounts() -> list[str]:
    """Mount points of this machine."""
    return sorted(x.split()[4] for x in Path("/proc/self/mountinfo").read_text().splitlines())


def processes() -> list[str]:
    """Every process of this machine but this one, with its words."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            state = (folder / "stat").read_text().rpartition(") ")[2][:1]
            if int(folder.name) != os.getpid() and state not in "ZX":
                found.append(f"{folder.name} {state} {words}")
    return found


def memory_bytes() -> int:
    """Private and shared memory that this process really uses: what the C library only keeps for later is given back first."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    fields = dict(x.split(":", 1) for x in Path("/proc/self/status").read_text().splitlines() if ":" in x)
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)
