"""A folder that this user may not enter, whoever runs the tests: to root no folder is closed."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest


def close(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on whoever looks at something below the folder is refused, as by a folder of another user that is 0700."""
    stat, connect, access = os.stat, socket.socket.connect, os.access

    def is_within(path: object) -> bool:
        return isinstance(path, str | Path) and folder in Path(path).parents

    def refused(path: object) -> PermissionError:
        return PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    def seen(path: str, **more: bool) -> os.stat_result:
        if is_within(path):
            raise refused(path)
        return stat(path, **more)

    def connected(self: socket.socket, address: str) -> None:
        if is_within(address):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        connect(self, address)

    monkeypatch.setattr(os, "stat", seen)
    monkeypatch.setattr(os, "access", lambda path, mode: not is_within(path) and access(path, mode))
    monkeypatch.setattr(socket.socket, "connect", connected)
