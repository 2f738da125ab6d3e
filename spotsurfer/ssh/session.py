"""Commands and shells over a connection."""

from __future__ import annotations

import os
import select
import shlex
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from spotsurfer.model.errors import MachineUnreachable

if TYPE_CHECKING:
    import paramiko

PIECE_BYTES = 1 << 15
STATUS_SECONDS = 5.0
BROKEN = "the connection broke before the command said how it ended"
Write = Callable[[bytes], object]


def run(client: paramiko.SSHClient, command: str, out: Write, err: Write, feed: bytes | int | None = b"") -> int:
    """Run a command and hand on what it prints; its exit code.

    `feed` is its input: bytes, a descriptor to read them from, or None: then it stays open and silent.

    Raises MachineUnreachable where the connection breaks.
    """
    channel = _open(client)
    try:
        channel.exec_command(command)
        if isinstance(feed, bytes):
            channel.sendall(feed)
            channel.shutdown_write()
        return _pump(channel, out, err, feed if isinstance(feed, int) else None)
    except OSError as e:
        raise MachineUnreachable(f"{BROKEN} ({e})") from e
    finally:
        channel.close()


def shell(client: paramiko.SSHClient, words: Sequence[str], stdin: IO[Any] = sys.stdin, out: Write | None = None) -> int:
    """A shell, or a command, on a terminal that follows the size of ours; its exit code. Raises MachineUnreachable."""
    import paramiko

    write = out or (lambda data: os.write(sys.stdout.fileno(), data))
    channel = _open(client)
    columns, lines = shutil.get_terminal_size()
    try:
        channel.get_pty(os.environ.get("TERM", "xterm"), columns, lines)
        if words:
            channel.exec_command(shlex.join(words))
        else:
            channel.invoke_shell()
        with _raw(stdin.fileno()), _resizes(channel):
            return _converse(channel, stdin.fileno(), write)
    except (OSError, paramiko.SSHException) as e:
        raise MachineUnreachable(f"{BROKEN} ({e})") from e
    finally:
        channel.close()


def _open(client: paramiko.SSHClient) -> paramiko.Channel:
    import paramiko

    transport = client.get_transport()
    try:
        if transport is None or not transport.is_active():
            raise MachineUnreachable("the connection is closed")
        return transport.open_session(timeout=30)
    except (paramiko.SSHException, EOFError, OSError) as e:
        raise MachineUnreachable(f"the machine opens no session ({e})") from e


def _pump(channel: paramiko.Channel, out: Write, err: Write, source: int | None) -> int:
    while True:
        ready, _, _ = select.select([channel, *([source] if source is not None else [])], [], [], 1.0)
        if source is not None and source in ready and not _forward(channel, source):
            source = None
        while channel.recv_ready():
            out(channel.recv(PIECE_BYTES))
        while channel.recv_stderr_ready():
            err(channel.recv_stderr(PIECE_BYTES))
        if channel.exit_status_ready() and channel.eof_received and not _more(channel):
            return _code(channel)
        if channel.closed and not _more(channel):
            return _code(channel)


def _forward(channel: paramiko.Channel, source: int) -> bool:
    """What was typed, or came through a pipe; False at its end."""
    typed = os.read(source, PIECE_BYTES)
    if typed:
        channel.sendall(typed)
    else:
        channel.shutdown_write()
    return bool(typed)


def _more(channel: paramiko.Channel) -> bool:
    return bool(channel.recv_ready() or channel.recv_stderr_ready())


def _converse(channel: paramiko.Channel, fd: int, write: Write) -> int:
    reads: list[Any] = [channel, fd]
    while True:
        ready, _, _ = select.select(reads, [], [], 1.0)
        if channel in ready:
            data = channel.recv(PIECE_BYTES)
            if not data:
                return _code(channel)
            write(data)
        if fd in ready and not _forward(channel, fd):
            reads.remove(fd)
        if channel.closed and not channel.recv_ready():
            return _code(channel)


def _code(channel: paramiko.Channel) -> int:
    if not channel.status_event.wait(STATUS_SECONDS):  # it comes behind the end of the output
        raise MachineUnreachable(BROKEN)
    code = int(channel.recv_exit_status())
    if code < 0:  # ended by a signal, or the connection went with it
        raise MachineUnreachable(BROKEN)
    return code


@contextmanager
def _raw(fd: int) -> Iterator[None]:
    """Keys go on as they are; the terminal is as it was afterwards."""
    if not os.isatty(fd):
        yield
        return
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextmanager
def _resizes(channel: paramiko.Channel) -> Iterator[None]:
    def resized(*_: object) -> None:
        columns, lines = shutil.get_terminal_size()
        channel.resize_pty(columns, lines)

    try:
        before = signal.signal(signal.SIGWINCH, resized)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
