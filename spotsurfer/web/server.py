"""Listeners: a Unix socket and, if asked for, TCP, in one process and one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import ssl
import struct
import tempfile
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from spotsurfer.config.settings import listen_address
from spotsurfer.ingress.listener import listening
from spotsurfer.model.errors import ConfigError, ControllerRunning
from spotsurfer.web.guard import PEER

SOCKET_PATH_MAX_BYTES = 107  # the kernel's limit for an address of this kind
GRACE_SECONDS = 3
DATE_SECONDS = 1  # resolution of the Date header


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An application and the socket it answers on."""

    app: FastAPI
    socket: socket.socket
    tls: ssl.SSLContext | None = None


class _Protocol(H11Protocol):
    """Of a connection over a Unix socket the kernel says whose it is: (PEER, number of the user)."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The kernel noted the user when the connection was made: it stays true if that process gives up its rights."""
        super().connection_made(transport)
        peer: socket.socket = transport.get_extra_info("socket")
        if peer.family == socket.AF_UNIX:
            _, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
            self.client = (PEER, uid)


class _Server(uvicorn.Server):
    """Signals are ours, because two servers share the process. It awaits its end instead of polling ten times a second."""

    def __init__(self, app: FastAPI, tls: ssl.SSLContext | None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=_Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # who a client is, is what the kernel says: anybody can write X-Forwarded-For
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )
        self._tls, self._ending = tls, asyncio.Event()
        if tls is not None:
            self.config.load()
            self.config.ssl = tls

    def end(self) -> None:
        """Begin to shut down; from the event loop."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """Until `end`."""
        while not await self.on_tick(0):  # 0: sets the date of answers anew
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), DATE_SECONDS)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Install no handlers."""
        yield


def tls_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """TLS with these files, read now; None if none are given. Raises ConfigError."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("[controller] tls_certificate and tls_key go together: set both.")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as e:
        raise ConfigError(f"[controller] tls_certificate {certificate} and tls_key {key} can't be used: {e}.") from None
    return context


def unix_socket(path: Path, group: str | None = None) -> socket.socket:
    """A listening socket at `path`, mode 0600, or 0660 for a group; a dead controller's file is replaced in one step.

    Raises ControllerRunning if a process answers there, ConfigError if it can't be made.
    """
    if len(str(path).encode()) > SOCKET_PATH_MAX_BYTES:
        raise ConfigError(f"The socket's path {path} is too long for the kernel: set [controller] socket to a shorter one.")
    if _answers(path):
        raise ControllerRunning(f"Another controller answers on {path}: stop it first, or use another data_dir.")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Bound inside a folder that only we can enter, so that it is never open to others, not even for a moment.
        with tempfile.TemporaryDirectory(prefix=".api-", dir=path.parent) as private:
            fresh = Path(private, "s")
            opened = os.open(private, os.O_PATH | os.O_DIRECTORY)
            try:
                listener.bind(f"/proc/self/fd/{opened}/s")  # the folder's whole name could be too long although `path` is not
            finally:
                os.close(opened)
            fresh.chmod(0o600)
            if group is not None:
                shutil.chown(fresh, group=group)
                fresh.chmod(0o660)
            listener.listen(128)
            fresh.replace(path)
    except LookupError:
        listener.close()
        raise ConfigError(f"[access] socket_group is {group!r}, and this host has no such group.") from None
    except OSError as e:
        listener.close()
        raise ConfigError(
            f"The socket {path} can't be made: {e.strerror}. Check its folder, or set [controller] socket."
        ) from None
    return listener


def tcp_socket(listen: str) -> socket.socket:
    """A listening TCP socket at "address:port"; raises ConfigError if that fails."""
    host, port = listen_address(listen)
    try:
        return listening(host, port)
    except OSError as e:
        raise ConfigError(f"[controller] listen = {listen!r} can't be used: {e.strerror}.") from None


def on_hangup(work: Callable[[], object]) -> None:
    """Make SIGHUP call `work` in a thread of its own, and end nothing: it comes from a closed terminal, too. Call this in the
    main thread. Errors of `work` end at the log.
    """

    def run() -> None:
        try:
            work()
        except Exception as e:
            structlog.get_logger(room="serve").warning("serve.hangup", error=str(e))

    signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=run, name="hangup", daemon=True).start())


def serve(endpoints: Sequence[Endpoint], stop: threading.Event, ready: Callable[[], None] = lambda: None) -> None:
    """Answer on all endpoints until `stop` is set, or SIGINT or SIGTERM comes (in the main thread). Long polls end at once.

    `stop` is set on return, whatever the cause.
    """
    asyncio.run(_serve(endpoints, stop, ready))


async def _serve(endpoints: Sequence[Endpoint], stop: threading.Event, ready: Callable[[], None]) -> None:
    servers = [_Server(e.app, e.tls) for e in endpoints]
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    tasks = [asyncio.create_task(s.serve(sockets=[e.socket])) for s, e in zip(servers, endpoints, strict=True)]
    stopped = asyncio.create_task(asyncio.to_thread(stop.wait))
    try:
        while not all(s.started or t.done() for s, t in zip(servers, tasks, strict=True)):
            await asyncio.sleep(0.01)
        ready()
        await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.set()
        for server, endpoint in zip(servers, endpoints, strict=True):
            endpoint.app.state.stopping = True
            server.end()
        await asyncio.gather(stopped, *tasks)


def _answers(path: Path) -> bool:
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True  # busy, or not ours to enter: a process is there
    return True
