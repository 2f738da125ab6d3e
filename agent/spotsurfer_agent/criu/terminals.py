"""Unread bytes of a job's own terminals, put back unchanged while the job stands still.

CRIU reads them at each dump, and writes them again through the terminal's settings, as if typed once more: each line gets a
second carriage return, and input is echoed again. After a dump that was meant as the last one CRIU writes nothing, even if
the job goes on after all, and leaves the terminals in O_NONBLOCK. See `tty_dump_queued_data` and `pty_restore_queued_data`
of criu/tty.c.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import select
import termios
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from spotsurfer_wire.linux import syscalls

from spotsurfer_agent.criu.images import BadImage, End, Unread, unread, waiting
from spotsurfer_agent.host import shim_protocol

DATA, INFO, FILES = "tty-data.img", "tty-info.img", "files.img"
LINES = "terminal-lines.json"
KEPT = "terminals.json"
SECONDS = 1.0  # for one terminal; more than it holds can't be in it, so nothing is to wait for
_LOOK_MS = 5  # the kernel makes room in its own time, without a wake-up
_PIECE = 64  # a descriptor that the job shares may wait for room: there is room for so much
_PEER = 0x5441  # TIOCGPTPEER of ioctl_tty(2)
_FAR, _NEAR_MAJORS = os.makedev(5, 2), range(136, 144)  # Documentation/admin-guide/devices.txt
_INDEX = re.compile(r"^tty-index:\s*(\d+)$", re.MULTILINE)
_SAYS_MORE = termios.ECHO | termios.ECHONL | termios.ISIG | termios.IEXTEN
_ACTS = (termios.VEOF, termios.VERASE, termios.VKILL)
_CANONICAL = termios.ICANON


def mend(images: Path, pids: Callable[[], list[int]], *, written: bool) -> None:
    """Mend the terminals after a dump into this folder; the tree stands still. `written`: CRIU wrote its copy. Never raises.

    CRIU can't read input of a line that is not ended; it becomes a file of the image.
    """
    with contextlib.suppress(OSError, BadImage):
        info, data, group = (images / INFO).read_bytes(), images / DATA, pids()
        if not written and (ends := waiting(info, (images / FILES).read_bytes())):
            _let_wait(group, ends)
        begun = put_back(group, unread(info, data.read_bytes() if data.exists() else b""), written=written)
        if any(begun.values()):
            (images / LINES).write_text(json.dumps({n: line.hex() for n, line in begun.items() if line}))


def lines(text: bytes) -> dict[int, bytes]:
    """The lines in such a file of an image. Raises BadImage."""
    try:
        return {int(number): bytes.fromhex(line) for number, line in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError) as e:
        raise BadImage(f"{LINES} can't be read: {type(e).__name__}") from e


def keep(folder: Path, found: Iterable[Unread]) -> None:
    """Keep unread bytes for `restored`. Raises OSError."""
    rows = [[u.number, u.output.hex(), u.input.hex(), u.line.hex()] for u in found if u]
    if rows:
        (folder / KEPT).write_text(json.dumps({"unread": rows}))


def restored(folder: Path, pids: Iterable[int]) -> None:
    """Put unread bytes back before the restored job's first instruction; CRIU did not get them. Never raises."""
    rows: Any = (shim_protocol.read_json(folder / KEPT) or {}).get("unread", ())
    put_back(pids, [Unread(number, *map(bytes.fromhex, held)) for number, *held in rows], written=False)


def put_back(pids: Iterable[int], found: Iterable[Unread], *, written: bool) -> dict[int, bytes]:
    """Put bytes back into the terminals of these processes. One that can't be mended stays as CRIU left it.

    Returns the lines of input that were not ended, by terminal.
    """
    wanted, begun = {End(u.number, far=True): u for u in found}, {}
    for end, fd in _held(pids) if wanted else ():
        if end in wanted:
            with contextlib.suppress(OSError, termios.error):
                begun[end.number] = _mend(fd, wanted.pop(end), written)
    return begun


def _let_wait(pids: Iterable[int], ends: set[End]) -> None:
    for end, fd in _held(pids):
        if end in ends:
            os.set_blocking(fd, True)


def _held(pids: Iterable[int]) -> Iterator[tuple[End, int]]:
    """Ends of terminals that these processes hold, each with a descriptor of ours for the loop step."""
    for pid in pids:
        with contextlib.suppress(OSError), contextlib.ExitStack() as ours:
            process = os.pidfd_open(pid)
            ours.callback(os.close, process)
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError), contextlib.ExitStack() as mine:
                    if (end := _end(entry)) is not None:
                        fd = syscalls.pidfd_getfd(process, int(entry.name))
                        mine.callback(os.close, fd)
                        yield end, fd


def _end(entry: Path) -> End | None:
    """The terminal's end behind an entry of /proc/PID/fd, if it is a terminal of the job."""
    device = entry.stat().st_rdev
    if os.major(device) in _NEAR_MAJORS:
        return End(os.minor(device), far=False)
    if device != _FAR:
        return None
    found = _INDEX.search((entry.parent.parent / "fdinfo" / entry.name).read_text())
    return End(int(found[1]), far=True) if found else None


def _mend(master: int, wanted: Unread, written: bool) -> bytes:
    slave = -1
    try:
        slave = fcntl.ioctl(master, _PEER, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
        settings = termios.tcgetattr(slave)
        try:
            termios.tcsetattr(slave, termios.TCSANOW, _plain(settings, lines=False))
            there = _emptied(slave)  # a line that is not ended, and then what CRIU wrote
            _emptied(master)  # after the input, whose echo ends up here
            line = (there[: len(there) - len(wanted.input)] if written else there) or wanted.line
            termios.tcsetattr(slave, termios.TCSANOW, _plain(settings, lines=bool(settings[3] & _CANONICAL)))
            _fill(master, wanted.input + line)
            _settled(slave, len(wanted.input))
            _fill(slave, wanted.output)
            return line
        finally:
            termios.tcsetattr(slave, termios.TCSANOW, settings)
    finally:
        if slave >= 0:
            os.close(slave)


def _plain(settings: list[Any], *, lines: bool) -> list[Any]:
    """The settings of a terminal that takes every byte literally. `lines`: it still handles lines."""
    inward, outward, control, local, *speeds, characters = settings
    characters = [b"\0" if i in _ACTS else c for i, c in enumerate(characters)]
    if not lines:
        characters[termios.VMIN], characters[termios.VTIME] = 1, 0
    local &= ~(_SAYS_MORE | _CANONICAL)
    return [inward & termios.IXON, outward & ~termios.OPOST, control, local | (_CANONICAL if lines else 0), *speeds, characters]


def _emptied(fd: int) -> bytes:
    """Read all bytes; `poll` makes the kernel deliver those on their way."""
    found, ready = b"", select.poll()
    ready.register(fd, select.POLLIN)
    while any(events & select.POLLIN for _, events in ready.poll(0)):
        found += os.read(fd, 4096)
    return found


def _fill(fd: int, data: bytes) -> None:
    ready, end = select.poll(), time.monotonic() + SECONDS
    ready.register(fd, select.POLLOUT)
    while data and time.monotonic() < end:
        if ready.poll(_LOOK_MS):
            data = data[os.write(fd, data[:_PIECE]) :]


def _settled(slave: int, count: int) -> None:
    """Wait until the kernel has accepted so many bytes of whole lines as input, without echo."""
    end = time.monotonic() + SECONDS
    while int.from_bytes(fcntl.ioctl(slave, termios.FIONREAD, bytes(4)), "little") < count and time.monotonic() < end:
        time.sleep(0.001)
