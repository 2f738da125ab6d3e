"""How agent and shim talk: JSON lines over a Unix socket in the job's folder.

The shim outlives agents and their upgrades, so nothing here may depend on more than this version number. A reply is
{"ok": true, …} or {"ok": false, "error": "a sentence"}. `dump`, `verdict` and `restore` answer when the thing is done, all
others at once.

A connection that began a dump is its owner: when it breaks during a live dump, the job goes on and the save is void.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VERSION = 1
SOCKET = "shim.sock"
STARTED = "shim.json"  # written when something of the job runs here for the first time
EXIT = "exit.json"
LOSS = "loss.json"  # the job was killed because its memory could not be brought: its end is no exit
HOOK = "hook.sh"
HOOK_ASKS, HOOK_ANSWERS, HOOK_FINAL = "hook.asks", "hook.answers", "hook.final"
LINE_BYTES = 1 << 22


class ShimGone(Exception):
    """Nobody answers at the socket, or the shim went away in the middle."""


class ShimRefused(Exception):
    """The shim refuses, with the reason as a sentence."""


class Conversation:
    """One connection to the shim."""

    def __init__(self, folder: Path, timeout_seconds: float = 30.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._socket.settimeout(timeout_seconds)
        self._rest = b""
        try:
            with _address(folder / SOCKET) as address:
                self._socket.connect(address)
        except OSError as e:
            self._socket.close()
            raise ShimGone(f"no shim in {folder}: {e.strerror}") from e

    def ask(self, verb: str, timeout_seconds: float | None = 30.0, **arguments: Any) -> dict[str, Any]:
        """Send one request and wait for its reply. Raises ShimGone and ShimRefused."""
        self._socket.settimeout(timeout_seconds)
        try:
            self._socket.sendall(json.dumps({"verb": verb, **arguments}).encode() + b"\n")
            reply = json.loads(self._line())
        except (OSError, ValueError) as e:
            raise ShimGone(f"the shim did not answer {verb}: {e}") from e
        if not reply.get("ok"):
            raise ShimRefused(str(reply.get("error", "no reason given")))
        return dict(reply)

    def _line(self) -> bytes:
        while b"\n" not in self._rest:
            data = self._socket.recv(1 << 16)
            if not data:
                raise OSError(0, "it closed the connection")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ask(folder: Path, verb: str, timeout_seconds: float = 30.0, **arguments: Any) -> dict[str, Any]:
    """One request on a connection of its own."""
    with Conversation(folder) as c:
        return c.ask(verb, timeout_seconds, **arguments)


@contextlib.contextmanager
def leading(folder: Path) -> Iterator[bool]:
    """In this block threads of the job are led through calls of ours: it is not frozen before its end for want of memory.

    False: it is frozen already.
    """
    with Conversation(folder) as talk:
        try:
            may = not talk.ask("lead").get("still")
        except ShimRefused:
            may = True  # an older shim knows neither this nor the guard
        yield may


@contextlib.contextmanager
def _address(path: Path) -> Iterator[str]:
    """The address of a socket at this path, which may be longer than an address can be: by way of its folder's descriptor."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def listen(path: Path) -> socket.socket:
    """A fresh socket at this path; it does not block. Raises OSError."""
    path.unlink(missing_ok=True)
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        with _address(path) as address:
            s.bind(address)
        path.chmod(0o600)
        s.listen(16)
    except OSError:
        s.close()
        raise
    return s


def write_durably(path: Path, value: dict[str, Any]) -> None:
    """A small JSON file that is there completely or not at all, also after a power cut."""
    fresh = path.with_suffix(".new")
    with fresh.open("w") as f:
        json.dump(value, f)
        f.flush()
        os.fsync(f.fileno())
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_json(path: Path) -> dict[str, Any] | None:
    """What `write_durably` wrote, or None."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
