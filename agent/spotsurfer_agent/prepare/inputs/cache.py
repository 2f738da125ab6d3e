"""Files by the SHA-256 of their content, on the disk of one machine, shared read-only by all jobs that it runs.

A file is written under `partial/` and gets its name under `objects/` only when all of it is there and its digest was
computed. Renaming is one step, so a killed process leaves no half file that looks whole. After a power cut a renamed file
may still lack bytes. So a file counts only within the boot in which it was written, or after its digest was computed again.

A job's *view* is a folder of hard links, so the number of links shows whether a file is in use. `partial/<name>` is also
the lock of the process that fetches it: the kernel releases it when its holder dies.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_agent.prepare.inputs.sources import InputTrouble, Kind
from spotsurfer_agent.store.cache import evict, free_bytes, locked

READ_BYTES = 1 << 20
SPARE_BYTES = 64 << 20  # left free for others on the disk
# The same on every machine, for programs that compare times: 2000-01-01.
MODIFIED_NS = 946_684_800 * 10**9
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass
class Partial:
    """A file that is being fetched, and the right to fetch it. `release` gives both up."""

    path: Path
    fd: int

    def release(self) -> None:
        """Remove the file unless it was kept, and let others fetch. Idempotent."""
        if self.fd >= 0:
            if _is_still(self.fd, self.path):
                self.path.unlink(missing_ok=True)
            os.close(self.fd)
            self.fd = -1


class Cache:
    """One folder; safe for several threads and processes. `bytes_max` 0: as much as the disk has."""

    def __init__(self, folder: Path, bytes_max: int = 0, boot: str | None = None) -> None:
        """Raises nothing: the folder is made on first use."""
        self.folder, self._bytes_max = folder, bytes_max
        self._boot = boot if boot is not None else _boot()
        self._good: set[str] = set()  # digests that this process found whole
        self._lock = threading.Lock()

    def link(self, digest: str, target: Path) -> bool:
        """Link a file into a view; False if the cache does not hold it. Raises OSError."""
        with self._shared():
            if not self._is_whole(digest):
                return False
            _make_folders(target.parent)
            target.unlink(missing_ok=True)
            try:
                os.link(self._object(digest), target)
            except FileNotFoundError:
                return False
            return True

    def known(self, name: str) -> str:
        """The digest of the file that was fetched under a name (see `learn`); "" = none."""
        with contextlib.suppress(OSError, ValueError):
            digest = (self.folder / "known" / name).read_text()
            return digest if len(digest) == 64 else ""
        return ""

    def learn(self, name: str, digest: str) -> None:
        """Record the digest behind a name that changes with the content."""
        path = self.folder / "known" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{secrets.token_hex(8)}")
        fresh.write_text(digest)
        fresh.replace(path)

    def held(self, digest: str) -> bool:
        """Whether the file is there and whole."""
        with self._shared():
            return self._is_whole(digest)

    def begin(self, name: str, *, wait: bool) -> Partial | None:
        """The right to fetch this name, with an empty file; None if another has it and `wait` is not set."""
        path = self.folder / "partial" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except OSError as e:
                os.close(fd)
                if e.errno == errno.EWOULDBLOCK:
                    return None
                raise
            if _is_still(fd, path):
                os.ftruncate(fd, 0)
                return Partial(path, fd)
            os.close(fd)  # its holder finished, and the name is gone

    def keep(self, partial: Partial, digest: str) -> None:
        """The file is complete and has this digest: from now on it counts. The caller records the name that it came by."""
        os.fchmod(partial.fd, 0o444)
        os.utime(partial.fd, ns=(MODIFIED_NS, MODIFIED_NS))
        path = self._object(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._shared():
            if not self._is_whole(digest):  # else it is there already, from another address
                self._mark(digest)
                partial.path.replace(path)

    def make_room(self, wanted: int) -> None:
        """Make so many bytes fit, if necessary by removing files that no view uses, least recently used first.

        Raises InputTrouble.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if wanted == 0 or self._fits(wanted):
            return
        with locked(self.folder / "lock"):  # nobody links a file into a view while unused files are removed
            if evict(self._unused(), lambda path: path.unlink(missing_ok=True), lambda: self._fits(wanted)):
                return
        raise InputTrouble(Kind.FULL, wanted=wanted, free=max(0, self._free()))

    def fresh_view(self, owner: str) -> Path:
        """An empty folder for one job; leftovers of an earlier try are removed."""
        path = self.view(owner)
        shutil.rmtree(path, ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        _make_folders(path)
        return path

    def view(self, owner: str) -> Path:
        """The folder of a job's view."""
        return self.folder / "views" / owner

    def drop_view(self, owner: str) -> None:
        """The job has left this machine; its files may be removed when room is needed."""
        shutil.rmtree(self.view(owner), ignore_errors=True)

    def _object(self, digest: str) -> Path:
        return self.folder / "objects" / digest[:2] / digest

    def _mark(self, digest: str) -> None:
        path = self.folder / "boot" / self._boot / digest[:2] / digest
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def _is_whole(self, digest: str) -> bool:
        if len(digest) != 64 or not self._object(digest).exists():
            return False
        if digest in self._good:
            return True
        if not (self.folder / "boot" / self._boot / digest[:2] / digest).exists():
            if sha256_of(self._object(digest)) != digest:  # from before a power cut
                self._object(digest).unlink(missing_ok=True)
                return False
            self._mark(digest)
        with self._lock:
            self._good.add(digest)
        return True

    def _fits(self, wanted: int) -> bool:
        if self._free() < wanted:
            return False
        return self._bytes_max == 0 or self._used() + wanted <= self._bytes_max

    def _free(self) -> int:
        return free_bytes(self.folder) - SPARE_BYTES

    def _used(self) -> int:
        return sum(p.stat().st_size for p in self._objects())

    def _objects(self) -> list[Path]:
        return [p for p in (self.folder / "objects").glob("??/*") if p.is_file()]

    def _unused(self) -> list[Path]:
        found = [(p, st) for p in self._objects() if (st := p.stat()).st_nlink == 1]
        return [p for p, _ in sorted(found, key=lambda x: x[1].st_ctime_ns)]  # the time of the last link or unlink

    def _shared(self) -> contextlib.AbstractContextManager[None]:
        return locked(self.folder / "lock", fcntl.LOCK_SH)


def sha256_of(path: Path, halt: Callable[[], None] = lambda: None) -> str:
    """The digest of a file, in hexadecimal digits; `halt` is called now and then and may raise."""
    digest, buffer = hashlib.sha256(), bytearray(READ_BYTES)
    with path.open("rb", buffering=0) as f:
        while count := f.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
            halt()
    return digest.hexdigest()


def _make_folders(path: Path) -> None:
    """Make folders of a view that every user of the job may read, independent of the agent's umask."""
    if not path.is_dir():
        _make_folders(path.parent)
        path.mkdir(exist_ok=True)
        path.chmod(0o755)


def _is_still(fd: int, path: Path) -> bool:
    try:
        return os.fstat(fd).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False


def _boot() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return "unknown"
