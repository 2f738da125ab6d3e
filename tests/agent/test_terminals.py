"""What nobody had read of a terminal: put back as it was, on terminals of this process, after what CRIU does to them."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsurfer_agent.criu import images, terminals
from spotsurfer_agent.criu.images import BadImage, Unread
from support.criu_images import MAGIC, image, message

QUIET_SECONDS = 0.2


class Terminal:
    """Both ends, and what CRIU's dump does to them."""

    def __init__(self) -> None:
        self.far, self.near = pty.openpty()
        os.set_blocking(self.near, False)
        self.index = int(os.ttyname(self.near).removeprefix("/dev/pts/"))

    def read(self, fd: int) -> bytes:
        """All that is there, as one who reads gets it; the kernel brings it up in its own time."""
        found = b""
        while select.select([fd], [], [], QUIET_SECONDS)[0]:
            found += os.read(fd, 4096)
        return found

    def dumped(self, *, writes: bool) -> Unread:
        """`tty_dump_queued_data` of criu/tty.c."""
        taken = Unread(self.index, self.read(self.far), self.read(self.near))
        if writes:
            os.write(self.near, taken.output)
            os.write(self.far, taken.input)
        return taken


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    os.close(made.far)
    os.close(made.near)


@pytest.mark.parametrize("writes", [True, False], ids=["live", "final"])
def test_what_was_on_its_way_is_there_once_and_as_it_was(terminal: Terminal, writes: bool) -> None:
    os.write(terminal.far, b"first\nsecond\nthi")
    time.sleep(0.1)  # its echo comes before what is said next
    os.write(terminal.near, b"hello\nyou\n")
    settings = termios.tcgetattr(terminal.near)
    for _ in range(3):
        taken = terminal.dumped(writes=writes)
        assert terminals.put_back([os.getpid()], [taken], written=writes) == {terminal.index: b"thi"}
    assert termios.tcgetattr(terminal.near) == settings
    assert terminal.read(terminal.far) == b"first\r\nsecond\r\nthihello\r\nyou\r\n"
    os.write(terminal.far, b"rd\n")
    assert [os.read(terminal.near, 100) for _ in range(3)] == [b"first\n", b"second\n", b"third\n"]
    assert terminal.read(terminal.far) == b"rd\r\n"


@pytest.mark.parametrize("writes", [True, False], ids=["live", "final"])
def test_bytes_that_a_terminal_would_act_upon_are_only_bytes(terminal: Terminal, writes: bool) -> None:
    settings = termios.tcgetattr(terminal.near)
    settings[3] &= ~(termios.ICANON | termios.ECHO | termios.ISIG)
    settings[0] &= ~(termios.ICRNL | termios.IXON)
    settings[1] &= ~termios.OPOST
    termios.tcsetattr(terminal.near, termios.TCSANOW, settings)
    every = bytes(range(256)) * 4
    os.write(terminal.far, every)
    os.write(terminal.near, every)
    terminals.put_back([os.getpid()], [terminal.dumped(writes=writes)], written=writes)
    assert (terminal.read(terminal.near), terminal.read(terminal.far)) == (every, every)


def test_as_much_as_a_terminal_holds_comes_back(terminal: Terminal) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(terminal.near, b"0123456789\n" * 20)
    taken = terminal.dumped(writes=True)
    assert len(taken.output) > 4096
    terminals.put_back([os.getpid()], [taken], written=True)
    assert terminal.read(terminal.far) == taken.output


def test_a_last_dump_that_is_let_go_leaves_terminals_that_wait(terminal: Terminal, tmp_path: Path) -> None:
    os.set_blocking(terminal.near, True)
    for fd in (terminal.far, terminal.near):  # `tty_unblock` of criu/tty.c; only what it writes to it puts to rights
        os.set_blocking(fd, False)
    number, held = 10 * terminal.index, os.O_RDWR
    (tmp_path / terminals.INFO).write_bytes(image(*ends(terminal.index)))
    (tmp_path / terminals.FILES).write_bytes(image(opened(number + 10, held), opened(number + 11, held | os.O_NONBLOCK)))
    (tmp_path / terminals.DATA).write_bytes(image())
    terminals.mend(tmp_path, lambda: [os.getpid()], written=True)
    assert not os.get_blocking(terminal.far)
    terminals.mend(tmp_path, lambda: [os.getpid()], written=False)
    assert (os.get_blocking(terminal.far), os.get_blocking(terminal.near)) == (True, False)


def test_a_terminal_that_is_gone_harms_nobody() -> None:
    terminals.put_back([os.getpid(), 2**22 - 1], [Unread(10**6, b"x")], written=True)


def ends(index: int, packet: int = 0) -> tuple[bytes, bytes]:
    """Far and near end of a terminal in a `tty-info.img`, with the numbers 10 and 11 more than ten times the index."""
    far = message(f1=10 * index + 10, f5=packet, f8=os.makedev(5, 2), f12=message(f1=index))
    return far, message(f1=10 * index + 11, f5=0, f8=os.makedev(136, index), f12=message(f1=index))


def opened(number: int, flags: int) -> bytes:
    """Of a `files.img`: an end of a terminal that is open."""
    return message(f1=18, f2=7, f19=message(f1=7, f2=number, f3=flags))


def test_what_criu_wrote_down_is_read() -> None:
    info = image(*ends(0), *ends(3, packet=1), ends(5)[0], ends(6)[1])
    data = image(message(f1=11, f2=b"typed\n"), message(f1=40, f2=b"\0out\r\n"), message(f1=10, f2=b"o"))
    assert images.unread(info, data) == [Unread(0, b"o", b"typed\n"), Unread(3, b"out\r\n")]
    assert not any(images.unread(info, images.without_messages(data)))
    with pytest.raises(BadImage):
        images.unread(image(), data)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_broken_bytes_are_a_bad_image(info: bytes, data: bytes) -> None:
    try:
        images.unread(MAGIC + info, MAGIC + data)
    except BadImage as e:
        assert str(e)


def test_what_is_kept_for_the_restore_comes_back(terminal: Terminal, tmp_path: Path) -> None:
    terminals.restored(tmp_path, [os.getpid()])
    terminals.keep(tmp_path, [])
    assert not list(tmp_path.iterdir())
    terminals.keep(tmp_path, [Unread(terminal.index, b"a\r\n\xff", b"b\n", b"c")])
    terminals.restored(tmp_path, [os.getpid()])
    assert (terminal.read(terminal.far), os.read(terminal.near, 9)) == (b"a\r\n\xff", b"b\n")
    os.write(terminal.far, b"\n")
    assert os.read(terminal.near, 9) == b"c\n"


@given(st.binary(max_size=40) | st.just(b'{"0": 1}') | st.just(b'{"x": "00"}') | st.just(b"[]"))
def test_a_broken_file_of_lines_is_a_bad_image(data: bytes) -> None:
    try:
        assert terminals.lines(data) == {}
    except BadImage as e:
        assert terminals.LINES in str(e)
