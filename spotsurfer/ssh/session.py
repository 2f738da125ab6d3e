"""Commands and shells over SSH: nudging an agent, following output, starting an agent."""

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
from spotsurfer.ports.provider import MACHINE_BASE as BASE

if TYPE_CHECKING:
    import paramiko


PIECE_BYTES = 1 << 15
STATUS_SECONDS = 5.0
BROKEN = "the connection broke before the command said how it ended"
Write = Callable[[bytes], object]


def run(client: paramiko.SSHClient, command: str, out: Write, err: Write, feed: bytes | int | None = b"") -> int:
    """Run a command and pass on its output; returns its exit code.

    `feed` is its input: bytes, a descriptor to read from, or None for an input that stays open and silent.

    Raises MachineUnreachable if the connection breaks.
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
            return _pump(channel, write, write, stdin.fileno())
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
    """Forward input from a keyboard or pipe; returns False at its end."""
    typed = os.read(source, PIECE_BYTES)
    if typed:
        channel.sendall(typed)
    else:
        channel.shutdown_write()
    return bool(typed)


def _more(channel: paramiko.Channel) -> bool:
    return bool(channel.recv_ready() or channel.recv_stderr_ready())


def _code(channel: paramiko.Channel) -> int:
    if not channel.status_event.wait(STATUS_SECONDS):  # it follows the end of the output
        raise MachineUnreachable(BROKEN)
    code = int(channel.recv_exit_status())
    if code < 0:  # ended by a signal, or lost with the connection
        raise MachineUnreachable(BROKEN)
    return code


@contextmanager
def _raw(fd: int) -> Iterator[None]:
    """Passes keys on unchanged; restores the terminal afterwards."""
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


# ---- Agent: nudges it, follows the job's output, starts it on a machine without user-data.
# Each is one plain command of sh. A user other than root becomes root by sudo without a password.

# SIGUSR1 makes the agent read head and desired at once (`control.process.run` there); its respawner writes its process id.
NUDGE = 'read -r pid <"$base/agent.pid" && kill -USR1 "$pid"'
# Segments are named by the offset of their first byte; the newest one grows, and another may begin.
# Our end of the input closes when we leave, which stops the reader.
FOLLOW = """cd "$base/job/log" || exit 1
at=$from
exec 3<&0
{ cat >/dev/null; kill $$ 2>/dev/null; } <&3 &
while :; do
  for f in "$stream"-*; do
    [ -e "$f" ] || continue
    begin=${f#"$stream"-}
    while [ "${begin#0}" != "$begin" ]; do begin=${begin#0}; done
    begin=${begin:-0}
    size=$(stat -c %s "$f")
    if [ "$at" -ge "$begin" ] && [ "$at" -lt $((begin + size)) ]; then
      tail -c "+$((at - begin + 1))" "$f" | head -c $((begin + size - at)) || exit 1
      at=$((begin + size))
    fi
  done
  sleep 0.2
done"""


def as_root(user: str, script: str, base: str = BASE, **values: str) -> str:
    """A command line that runs `script` as root with these variables."""
    set_up = "".join(f"{k}={shlex.quote(v)}\n" for k, v in {"base": base, **values}.items())
    command = f"sh -c {shlex.quote(set_up + script)}"
    return command if user == "root" else f"sudo -n {command}"


def nudge(client: paramiko.SSHClient, user: str, base: str = BASE) -> None:
    """Make the agent look now. Raises MachineUnreachable, also without an agent."""
    said: list[bytes] = []
    if run(client, as_root(user, NUDGE, base), said.append, said.append) != 0:
        raise MachineUnreachable(f"the agent can't be nudged: {b''.join(said).decode(errors='replace').strip()}")


def follow(client: paramiko.SSHClient, user: str, stream: str, start: int, out: Write, base: str = BASE) -> int:
    """Pass on the job's output from that offset until the connection ends; returns the command's exit code."""
    values = {"from": str(start), "stream": stream}
    return run(client, as_root(user, FOLLOW, base, **values), out, lambda _: None, feed=None)


def install(client: paramiko.SSHClient, user: str, user_data: str) -> None:
    """Start an agent on a machine that takes no user-data: the same program, over the connection's standard input.

    Raises MachineUnreachable with the command's message.
    """
    said: list[bytes] = []
    take = 'f=$(mktemp) && cat >"$f" && sh "$f"; code=$?; rm -f "$f"; exit $code'
    if run(client, as_root(user, take), said.append, said.append, user_data.encode()) != 0:
        text = b"".join(said).decode(errors="replace").strip()
        raise MachineUnreachable(f"the agent can't be started there: {text[-500:]}")
