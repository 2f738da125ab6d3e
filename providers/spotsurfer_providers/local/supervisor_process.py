"""Making a box: its folder, and a supervisor that outlives us with the lock of that folder in its hand."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
from pathlib import Path

from spotsurfer_providers.local.records import BoxFolder, BoxRecord, Home, take_lock, to_json, write_atomically

LOCK_FD = 3
_KEPT = ("PATH", "PYTHONPATH", "LANG", "VIRTUAL_ENV", "TMPDIR")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_children: set[int] = set()


def make_box(home: Home, record: BoxRecord) -> BoxFolder:
    """Order the box that `record` describes; its folder appears complete. Raises OSError."""
    fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=home.boxes))
    lock = os.open(fresh / "alive", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        take_lock(lock)
        write_atomically(fresh / "box.json", to_json(record))
        final = home.boxes / record.id
        fresh.rename(final)
        start_supervisor(final, lock)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    finally:
        os.close(lock)
    return BoxFolder(final)


def start_supervisor(folder: Path, lock: int) -> int:
    """Start the supervisor of a box in a session of its own; its process id. `lock` becomes its descriptor 3."""
    environment = {k: v for k in _KEPT if (v := os.environ.get(k))}
    environment["PATH"] = f"{environment.get('PATH', '')}:{_PATH}".removeprefix(":")
    log = os.open(folder / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    # Duplicated first: each of the three numbers 0 to 2 could otherwise be overwritten before it is used.
    high = [_above(x) for x in (null, log, lock)]
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-m", "spotsurfer_providers.local.supervisor", str(folder)],
            environment,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, high[0], 0),
                (os.POSIX_SPAWN_DUP2, high[1], 1),
                (os.POSIX_SPAWN_DUP2, high[1], 2),
                (os.POSIX_SPAWN_DUP2, high[2], LOCK_FD),
            ],
            setsid=True,
        )
    finally:
        for fd in (null, log, *high):
            os.close(fd)
    _children.add(pid)
    return pid


def reap() -> None:
    """Take note of supervisors of ours that ended, so that they do not stay as zombies."""
    for pid in list(_children):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                continue
        _children.discard(pid)


def _above(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, LOCK_FD + 1)
