"""Orders to a box's supervisor: one line of JSON each way over a Unix socket in the box's folder, for root only."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
