"""Scenes on a minibox whose disk keeps no instant (ext4, XFS): the job's files are copied, most of them while it runs."""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from unittest import mock

from spotsurfer_agent.files import scratch as scratches
from spotsurfer_agent.files.scratch import Scratch
from spotsurfer_agent.files.tree import Stamp
from spotsurfer_agent.save import session
from spotsurfer_wire.linux import procfs
from spotsurfer_wire.manifest import Stored
from spotsurfer_wire.store.obstore import open_store
from support.engine_kit import BASE, begin, engine, job, newest, output, refused, request, runs, turns_pass
from support.engine_kit import STORE as URL

FILES, PROGRAMS = 2000, 100
BIG_BYTES = 256 << 20
OLD_SECONDS = scratches.RACY_NS / 1e9 + 0.5


def through_a_mapping(path: Path) -> None:
    with path.open("r+b") as f, mmap.mmap(f.fileno(), 0) as m:
        m[100:104] = b"late"


def in_place(path: Path) -> None:
    with path.open("r+b") as f:
        f.write(b"late")


def times_put_back(path: Path) -> None:
    st = path.stat()
    in_place(path)
    os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))


def another_file(path: Path) -> None:
    fresh = path.with_name("fresh")
    fresh.write_bytes(b"another".ljust(path.stat().st_size))
    fresh.rename(path)


CHANGES: dict[str, Callable[[Path], object]] = {
    "in_place": in_place,
    "mapped": through_a_mapping,
    "times_put_back": times_put_back,
    "another_file": another_file,
    "removed": Path.unlink,
    "grown": lambda path: path.write_bytes(path.read_bytes() + b"more"),
    "new": lambda path: path.write_bytes(b"new"),
}


def ahead() -> None:
    """Every file is as at the instant, whatever happened to it since it was copied; what did not change is copied once."""
    s = Scratch(BASE, ("btrfs",))
    s.make()
    work = s.path / "work"
    assert not s.is_subvolume
    for name in (*CHANGES, "quiet", "big"):
        if name != "new":
            (work / name).write_bytes(name.encode() * 4096)
    mapped = (work / "mapped").open("r+b")
    kept_mapped = mmap.mmap(mapped.fileno(), 0)
    kept_mapped[0:4] = b"then"  # a page that is dirty and writable when the copy begins
    time.sleep(OLD_SECONDS)
    copied: list[str] = []
    sync = s.sync

    def written_meanwhile() -> int:
        begun_ns = sync()
        (work / "young").write_bytes(b"y" * 4096)
        return begun_ns

    real = scratches._copy

    def copy(source: Path, target: Path, stamp: Stamp) -> None:
        copied.append(source.name)
        real(source, target, stamp)

    scratches._copy = copy
    with mock.patch.object(s, "sync", written_meanwhile):
        s.copy_ahead("c", {})
    assert "quiet" in copied and "young" not in copied, copied
    for name, change in CHANGES.items():
        change(work / name)
    kept_mapped[200:204] = b"soon"
    del copied[:]
    capture = s.capture("c", {}, stays_frozen=False)()
    instant = {p.name: p.read_bytes() for p in work.iterdir()}
    assert sorted(copied) == sorted([*(set(CHANGES) - {"removed"}), "young"]), copied
    for path in work.iterdir():
        path.write_bytes(b"afterwards")
    seen = {Path(e.path).name: capture.where(e).read_bytes() for e in capture.entries if e.kind == "file" and "work/" in e.path}
    assert seen == instant
    capture.drop()
    assert list((BASE / "job/kept").iterdir()) == []


def flushed() -> None:
    """A file that was just written, and takes long to be written back, is copied while the job runs."""
    s = Scratch(BASE, ("btrfs",))
    s.make()
    (s.path / "work" / "big").write_bytes(b"b" * 4096)
    real, waits = scratches.syscalls.syncfs, [OLD_SECONDS]

    def slow(fd: int) -> None:
        time.sleep(waits.pop() if waits else 0)
        real(fd)

    scratches.syscalls.syncfs = slow
    s.copy_ahead("c", {})
    assert list(s._ahead) == ["work/big"]


def aside() -> None:
    """A write whose times are set may wait for the disk: one through a mapping or past the cache is given longer to end."""
    s = Scratch(BASE, ("btrfs",))
    s.make()
    for name in ("plain", "mapped", "past"):
        (s.path / "work" / name).write_bytes(b"a" * 4096)
    file = (s.path / "work" / "mapped").open("r+b")
    kept = mmap.mmap(file.fileno(), 0)
    past = os.open(s.path / "work" / "past", os.O_RDWR | os.O_DIRECT)
    s.copy_ahead("c", {}, lambda: [os.getpid()])
    assert list(s._ahead) == ["work/plain"], s._ahead
    time.sleep(scratches.ASIDE_NS / 1e9)
    s.copy_ahead("c", {}, lambda: [os.getpid()])
    assert len(s._ahead) == 3
    found = procfs.written_aside([os.getpid()])
    os.close(past)
    kept.close()
    assert found.isdisjoint(procfs.written_aside([os.getpid()]))


def dirtied() -> None:
    """A mapped page that was written when the last sync began may be written again without a trace: it is not trusted."""
    s = Scratch(BASE, ("btrfs",))
    s.make()
    path = s.path / "work" / "mapped"
    path.write_bytes(b"m" * 4096)
    time.sleep(OLD_SECONDS)
    scratches.SYNCS_MAX = 1

    def slow(_: int) -> None:
        through_a_mapping(path)
        time.sleep(OLD_SECONDS)

    scratches.syscalls.syncfs = slow
    s.copy_ahead("c", {})
    assert s._ahead == {}


def swapped() -> None:
    """A folder that becomes a link between look and copy leads nowhere; nor is a full disk filled further."""
    s = Scratch(BASE, ("btrfs",))
    s.make()
    folder, other = s.path / "work" / "a", Path("/mnt/other")
    for place in (folder, other):
        place.mkdir()
        (place / "f").write_bytes(place.name.encode() * 100)
    time.sleep(OLD_SECONDS)
    real = scratches._to_copy

    def to_copy(capture: scratches.Capture) -> list[str]:
        folder.rename(folder.with_name("b"))
        folder.symlink_to(other)
        return real(capture)

    scratches._to_copy = to_copy
    s.copy_ahead("c", {})
    assert s._ahead == {} and list((BASE / "job/kept/c.ahead").iterdir()) == []
    scratches._to_copy = real
    s.free_bytes = lambda: 1 << 20  # type: ignore[method-assign]
    s.copy_ahead("c", {})
    assert s._ahead == {}
    del s.free_bytes
    s.copy_ahead("c", {})
    assert list(s._ahead) == ["work/b/f"]


def many() -> None:
    """In the freeze thousands of small files are copied in less time than as many programs need to start."""
    s = Scratch(BASE, ("btrfs",))
    s.make()
    for number in range(FILES):
        (s.path / "work" / f"{number}.txt").write_bytes(b"report\n" * 100)
    s.copy_ahead("c", {})
    began = time.monotonic()
    capture = s.capture("c", {}, stays_frozen=False)()
    seconds = time.monotonic() - began
    began = time.monotonic()
    for _ in range(PROGRAMS):
        subprocess.run(["/bin/true"], check=True)
    programs = (time.monotonic() - began) / PROGRAMS * FILES
    assert sum(e.kind == "file" for e in capture.entries) == FILES
    assert seconds < programs / 2, (seconds, programs)


def shared() -> None:
    """XFS: a file that was just written is copied in the freeze without its bytes, so it takes neither time nor room."""
    s = Scratch(BASE, ("btrfs",))
    s.make()
    (s.path / "work" / "big").write_bytes(os.urandom(BIG_BYTES))
    s.sync()
    free = s.free_bytes()
    s.copy_ahead("c", {})
    capture = s.capture("c", {}, stays_frozen=False)()
    assert free - s.free_bytes() < BIG_BYTES // 2
    (s.path / "work" / "big").write_bytes(b"afterwards")
    (copy,) = [capture.where(e) for e in capture.entries if e.path == "work/big"]
    assert copy.stat().st_size == BIG_BYTES


def full() -> None:
    """No room for the copies: said with its remedy, and the job runs on; as soon as there is room it is saved."""
    e = engine()
    begin(e, job())
    (Path(e.scratch()) / "work/result").write_bytes(os.urandom(32 << 20))
    filler = BASE / "filler"
    with filler.open("wb", buffering=0) as f:
        with contextlib.suppress(OSError):
            while f.write(bytes(1 << 20)):
                pass
        f.truncate(f.tell() - (16 << 20))
    told = refused("save", lambda: e.save(request(1, final=False)))
    assert "disk is full: ask for a larger one" in told, told
    runs(e)
    filler.unlink()
    e.save(request(2, final=False))
    runs(e)
    e.kill()


def subvolume() -> None:
    """One that the job made is not in a snapshot: named, and the job runs on; without it it is saved."""
    e = engine()
    begin(e, job())
    own = Path(e.scratch(), "work", "own")
    subprocess.run(["btrfs", "-q", "subvolume", "create", str(own)], check=True)
    for number in (1, 2):
        told = refused("save", partial(e.save, request(number, final=number == 2)))
        assert "own in the job's folder is a btrfs subvolume" in told, told
        runs(e)
    subprocess.run(["btrfs", "-q", "subvolume", "delete", str(own)], check=True)
    e.save(request(3, final=True))
    e.kill()


def slowly() -> None:
    """Copying takes longer than a shim is patient with an agent that says nothing; where it takes too long that is said."""
    session.VERDICT_SECONDS, session.ALIVE_SECONDS = 1.5, 0.3
    e = engine()
    begin(e, job())
    real = scratches._copy

    def copy(source: Path, target: Path, stamp: Stamp) -> None:
        time.sleep(2.5 if source.name == "fresh" else 0)
        real(source, target, stamp)

    scratches._copy = copy
    fresh = Path(e.scratch(), "work", "fresh")
    ahead_of = Scratch.copy_ahead

    def written_after(s: Scratch, name: str, trusted: Mapping[str, Stored], pids: Callable[[], list[int]]) -> bool:
        copied = ahead_of(s, name, trusted, pids)
        fresh.write_bytes(os.urandom(1))
        return copied

    Scratch.copy_ahead = written_after  # type: ignore[method-assign]
    facts = e.save(request(1, final=False))
    assert facts.frozen_seconds > 2, facts
    runs(e)
    session.KEEP_SECONDS = 0.0
    told = refused("save", lambda: e.save(request(2, final=False)))
    assert "writes too much" in told, told
    runs(e)
    session.KEEP_SECONDS = 60.0
    e.save(request(3, final=True))
    e.kill()
    e.restore(newest(open_store(URL)), job())
    turns_pass(e, 3)
    assert output(e)
    e.kill()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
