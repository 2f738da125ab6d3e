"""The shim: one small process per job that outlives agents. This file is its loop and its socket; the job is in `shim.job`.

It has one thread, besides those that write output. Standard library only, and all imports at the top: an upgrade may replace
its files under it.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotsurfer_wire.linux import syscalls

from spotsurfer_agent.host import shim_protocol
from spotsurfer_agent.shim.criu_runs import Refused
from spotsurfer_agent.shim.job import Job, Reply

SEND_SECONDS = 2.0
ORPHAN_SECONDS = 2.0  # between looks of an idle shim whether anybody will still come


@dataclass(eq=False, slots=True)
class Client:
    """One connection."""

    socket: socket.socket
    rest: bytes = b""


class Shim:
    """Serves the socket of one base folder and turns its job."""

    def __init__(self, base: Path, starter: int) -> None:
        """`starter`: the process that started it."""
        self._folder, self._starter = base / "job", starter
        self._selector = selectors.DefaultSelector()
        self._clients: set[Client] = set()
        self.job = Job(self._folder, self._send, self._watch, self._unwatch)

    def run(self) -> None:
        """Serve until the job is to be killed."""
        listener = shim_protocol.listen(self._folder / shim_protocol.SOCKET)
        wake, woken = os.pipe()
        for fd in (wake, woken):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        self._watch(listener.fileno(), lambda: self._accept(listener))
        self._watch(wake, lambda: self._reap(wake))
        mine = self._socket_inode()
        while not self.job.over:
            idle = self.job.idle
            for key, _ in self._selector.select(ORPHAN_SECONDS if idle else self.job.pause_seconds()):
                key.data()
            self.job.look_at_clock()
            if idle and self.job.idle and (os.getppid() != self._starter or self._socket_inode() != mine):
                return  # the agent that started this one is gone, and the next one has a shim of its own

    def _socket_inode(self) -> int:
        try:
            return (self._folder / shim_protocol.SOCKET).stat().st_ino
        except OSError:
            return 0

    def _watch(self, fd: int, ready: Callable[[], None]) -> None:
        if fd not in self._selector.get_map():
            self._selector.register(fd, selectors.EVENT_READ, ready)

    def _unwatch(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def _reap(self, wake: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(wake, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.job.child_ended(pid, os.waitstatus_to_exitcode(status))

    # ------------------------------------------------------------ connections

    def _accept(self, listener: socket.socket) -> None:
        try:
            s, _ = listener.accept()
        except OSError:
            return
        s.setblocking(False)
        client = Client(s)
        self._clients.add(client)
        self._watch(s.fileno(), lambda: self._readable(client))

    def _readable(self, client: Client) -> None:
        if client not in self._clients:
            return
        try:
            data = client.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        client.rest += data
        if not data or len(client.rest) > shim_protocol.LINE_BYTES:
            self._drop(client)
            return
        while b"\n" in client.rest:
            line, _, client.rest = client.rest.partition(b"\n")
            self._request(client, line)

    def _drop(self, client: Client) -> None:
        if client in self._clients:
            self._clients.discard(client)
            self._unwatch(client.socket.fileno())
            client.socket.close()
            self.job.owner_gone(client)

    def _request(self, client: Client, line: bytes) -> None:
        try:
            request = json.loads(line)
            verb = self.job.verbs.get(request.get("verb"))
            if verb is None:
                raise Refused(f"this shim (version {shim_protocol.VERSION}) does not know {request.get('verb')!r}")
            reply = verb(client, request)
        except Refused as e:
            reply = {"ok": False, "error": str(e)}
        except OSError as e:
            reply = {"ok": False, "error": e.strerror or str(e)}
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            reply = {"ok": False, "error": f"the request can't be read: {type(e).__name__}: {e}"}
        if reply is not None:
            self._send(client, reply)

    def _send(self, client: Any, reply: Reply) -> None:
        """Answer; a client that does not listen is dropped, never waited for."""
        if client not in self._clients:
            return
        try:
            client.socket.settimeout(SEND_SECONDS)
            client.socket.sendall(json.dumps({"ok": True, **reply}).encode() + b"\n")
            client.socket.setblocking(False)
        except OSError:
            self._drop(client)


def main(argv: list[str]) -> None:
    """`python -m spotsurfer_agent.shim BASE STARTER`."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it ends with its job, not with its starter
    os.umask(0o077)
    syscalls.leave_no_core()
    syscalls.become_subreaper()
    Shim(Path(argv[1]), int(argv[2])).run()


if __name__ == "__main__":
    main(sys.argv)
