"""Starting a box's supervisor, and orders to it over its Unix socket."""

from __future__ import annotations

import contextlib
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

from spotsurfer_providers.local.box.records import BoxFolder, BoxRecord, Home, take_lock, to_json, write_atomically

# Orders to a box's supervisor: one line of JSON each way over a Unix socket in the box's folder, for root only.

SOCKET = "control"
_TIMEOUT_SECONDS = 30.0  # a box that is just starting answers when it has started
_ASKER_SECONDS = 2.0  # one that connects and says nothing must not hold up the scenario


class NoAnswer(Exception):
    """Nobody answers: the supervisor is gone, or not there yet."""


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
    """Take one order and have it done. What goes wrong is the asker's to hear."""
    connection, _ = listening.accept()
    with connection:
        connection.settimeout(_ASKER_SECONDS)
        try:
            line = connection.makefile("r", encoding="utf-8").readline()
            reply = do(json.loads(line)) if line else {}
        except Exception as e:  # never the end of a box
            reply = {"ok": False, "error": f"{type(e).__name__}: {e}"}
        with contextlib.suppress(OSError):
            connection.sendall(json.dumps(reply).encode() + b"\n")


def ask(folder: Path, order: Mapping[str, Any], timeout_seconds: float = _TIMEOUT_SECONDS) -> dict[str, Any]:
    """Give an order; the answer. Raises NoAnswer, or ValueError with the supervisor's words where it can't be done."""
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
    """Order the end without waiting for an answer; nobody there is no error: the order also lies in the folder."""
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
    """An address that fits a socket's 107 bytes, however long the folder's name is."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET}"
    finally:
        os.close(fd)


# Making a box: its folder, and a supervisor that outlives us with the lock of that folder in its hand.

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
    """Take note of supervisors of ours that ended, so that they do not stay as zombies."""
    for pid in list(_children):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                continue
        _children.discard(pid)


def _above(fd: int) -> int:
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, LOCK_FD + 1)
