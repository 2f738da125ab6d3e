"""Ways in which a store, a disk or a machine fails, for the scenes of `support.fault_scenes`."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from spotsurfer_wire.linux import memory
from spotsurfer_wire.store.port import StoreDenied, StoreError
from support.engine_kit import BASE, CriuEngine, output, until

STORE = Path("/run/store")
MEMORY_SLACK_BYTES = 96 << 20
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
    return _held_bytes()


def _held_bytes() -> int:
    fields = dict(x.split(":", 1) for x in Path("/proc/self/status").read_text().splitlines() if ":" in x)
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))


class Peak:
    """The most memory that this process held while the block lasts, above what it held before."""

    def __init__(self) -> None:
        self.bytes, self._over = 0, threading.Event()
        self._before, self._thread = memory_bytes(), threading.Thread(target=self._look)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.01):
            self.bytes = max(self.bytes, _held_bytes() - self._before)


@contextlib.contextmanager
def free_memory(free_bytes: int) -> Iterator[None]:
    """The machine's control group allows this much more than what is used now, by the job and all others."""
    folder = next(iter(memory._own_folders()))
    limit = next(folder / name for name in ("memory.max", "memory.limit_in_bytes") if (folder / name).exists())
    much = 1 << 40
    limit.write_text(str(much))
    limit.write_text(str(much - memory._left(folder) + free_bytes))
    assert memory.free_bytes() <= free_bytes + (16 << 20)
    try:
        yield
    finally:
        limit.write_text("max" if limit.name == "memory.max" else "-1")


def dawdle(key: str) -> None:
    """A slow store: a few megabytes a second for each request in flight."""
    if any(part in key for part in DATA):
        time.sleep(0.5)


@contextlib.contextmanager
def nothing_left(e: CriuEngine) -> Iterator[None]:
    """At the end the job is killed, and of all that was done here nothing is there any more."""
    before, held = mounts(), memory_bytes()
    yield
    e.kill()
    with contextlib.suppress(AssertionError):
        until(lambda: not processes(), 10.0)
    assert not processes(), processes()
    assert mounts() == before
    assert list((BASE / "job/images").iterdir()) == []
    assert not (BASE / "job/kept").exists() or list((BASE / "job/kept").iterdir()) == []
    sockets = [p for p in BASE.rglob("*") if p.is_socket() and p.name != "shim.sock"]
    assert sockets == []
    assert b"ssjob0" not in subprocess.run(["ip", "link"], capture_output=True, check=True).stdout
    more = memory_bytes() - held
    assert more < MEMORY_SLACK_BYTES, f"{more >> 20} MiB are still held"


def whole(e: CriuEngine) -> None:
    """The job's output is complete: every turn once, in order."""
    numbers = [int(x.split()[1]) for x in output(e).decode().splitlines() if x.startswith("turn")]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)
