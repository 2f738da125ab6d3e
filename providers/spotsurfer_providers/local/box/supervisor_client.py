"""Starts a box's supervisor, and sends it orders over a Unix socket."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spotsurfer_providers.local.box.records import BoxFolder, BoxRecord, Home, write_atomically

# ---- Orders: one line of JSON each way over a Unix socket in the box's folder, for root only.

SOCKET = "control"
_TIMEOUT_SECONDS = 30.0  # a starting box answers only after its start
_ASKER_SECONDS = 2.0  # a silent connection must not delay the scenario


class NoAnswer(Exception):
    """No answer: the supervisor is gone, or not there yet."""


def listen(folder: Path) -> socket.socket:
    """The supervisor's end."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _short(folder) as short:
        with contextlib.suppress(FileNotFoundError):
            (folder / SOCKET).unlink()
        old = os.umask(0o177)
        try:
            made.bind(short)
        finally:
            os.umask(old)
    made.listen(16)
    return made


def answer(listening: socket.socket, do: Callable[[Mapping[str, Any]], dict[str, Any]]) -> None:
    """Take one order and carry it out. The asker gets any error."""
    connection, _ = listening.accept()
    with connection:
        connection.settimeout(_ASKER_SECONDS)
        try:
            line = connection.makefile("r", encoding="utf-8").readline()
            reply = do(json.loads(line)) if line else {}
        except Exception as e:  # must never end a box
            reply = {"ok": False, "error": f"{type(e).__name__}: {e}"}
        with contextlib.suppress(OSError):
            connection.sendall(json.dumps(reply).encode() + b"\n")


def ask(folder: Path, order: Mapping[str, Any], timeout_seconds: float = _TIMEOUT_SECONDS) -> dict[str, Any]:
    """Send an order; returns the answer. Raises NoAnswer, or ValueError with the supervisor's message on failure."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, _short(folder) as short:
            connection.settimeout(timeout_seconds)
            connection.connect(short)
            connection.sendall(json.dumps(order).encode() + b"\n")
            line = connection.makefile("r", encoding="utf-8").readline()
    except OSError as e:
        raise NoAnswer(f"{folder.name} does not answer: {e}") from e
    if not line:
        raise NoAnswer(f"{folder.name} ended while it was asked")
    reply: dict[str, Any] = json.loads(line)
    if not reply.get("ok"):
        raise ValueError(reply.get("error", "refused"))
    return reply


def poke(folder: Path) -> None:
    """Order the end without waiting for an answer; an absent supervisor is no error: the order also lies in the folder."""
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
        _short(folder) as short,
    ):
        connection.setblocking(False)
        connection.connect(short)
        connection.send(b'{"order": "terminate"}\n')


@contextmanager
def _short(folder: Path) -> Iterator[str]:
    """An address within a socket's 107 bytes, however long the folder's name is."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET}"
    finally:
        os.close(fd)


# ---- Start: makes the folder, and a supervisor that outlives us and holds the folder's lock.

LOCK_FD = 3
_KEPT = ("PATH", "PYTHONPATH", "LANG", "VIRTUAL_ENV", "TMPDIR")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_children: set[int] = set()


def make_box(home: Home, record: BoxRecord) -> BoxFolder:
    """Make the box that `record` describes; its folder appears complete. Raises OSError."""
    fresh = Path(tempfile.mkdtemp(prefix=".new-", dir=home.boxes))
    lock = os.open(fresh / "alive", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        write_atomically(fresh / "box.json", json.dumps(dataclasses.asdict(record), indent=1))
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
    # Duplicated first: otherwise one of the numbers 0 to 2 could be overwritten before its use.
    high = [_above(x) for x in (null, log, lock)]
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-m", "spotsurfer_providers.local.box.supervisor", str(folder)],
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
    """Reap our ended supervisors, so that they do not stay as zombies."""
    for pid in list(_children):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                continue
        _children.discard(pid)


def _above(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, LOCK_FD + 1)
