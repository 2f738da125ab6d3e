"""The receiver of streamed images, with a CRIU that is played by the test."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time

import pytest
from spotsurfer_agent.criu.images import StreamError
from spotsurfer_agent.save.image_intake import Intake
from spotsurfer_agent.save.memory_reserve import Reserve
from spotsurfer_agent.save.pages import Pages
from spotsurfer_agent.save.stream import SOCKET, Receiver
from support.chunks import Store


class Kept:
    """A sink that keeps everything; `gate` holds it back."""

    def __init__(self) -> None:
        self.data, self.state = bytearray(), "open"
        self.gate = threading.Event()
        self.gate.set()
        self._room = bytearray(1000)

    def room(self):
        self.gate.wait()
        return memoryview(self._room)

    def filled(self, count):
        self.data += self._room[:count]

    def end(self):
        self.state = "whole"

    def abort(self):
        self.state = "given up"


class Criu:
    """The other side."""

    def __init__(self, folder):
        self.control = socket.socket(socket.AF_UNIX)
        self.control.connect(str(folder / SOCKET))
        self.pipes: list[int] = []

    def close(self):
        self.control.close()
        for fd in self.pipes:
            with contextlib.suppress(OSError):
                os.close(fd)

    def announce(self, name: str) -> int:
        body = b"\x0a" + bytes([len(name)]) + name.encode()
        self.control.sendall(struct.pack("=I", len(body)) + body)
        read, write = os.pipe()
        socket.send_fds(self.control, [b"\0"], [read])
        os.close(read)
        self.pipes.append(write)
        return write

    def write(self, fd, data=b""):
        """All of a file."""
        os.write(fd, data)
        self.pipes.remove(fd)
        os.close(fd)


@pytest.fixture
def made(tmp_path):
    sinks: dict[str, Kept] = {}
    receiver = Receiver(tmp_path, lambda name: sinks.setdefault(name, Kept()))
    criu = Criu(tmp_path)
    yield receiver, sinks, criu
    criu.close()
    for sink in sinks.values():
        sink.gate.set()
    receiver.close()
    assert list(tmp_path.iterdir()) == []


def test_drained_means_that_every_announced_file_was_read_to_its_end(made):
    receiver, sinks, criu = made
    first = criu.announce("inventory.img")
    assert not receiver.drained(0.05)
    criu.write(first, b"x" * 5000)
    assert receiver.drained(5)
    assert (bytes(sinks["inventory.img"].data), sinks["inventory.img"].state) == (b"x" * 5000, "whole")
    second = criu.announce("pages-1.img")
    criu.write(second)
    assert receiver.drained(5)  # announced just now, not to be missed
    assert sinks["pages-1.img"].state == "whole"
    late = criu.announce("stats-dump")  # after the hook
    criu.write(late, b"y")
    criu.control.close()
    assert receiver.drained(5)
    assert sinks["stats-dump"].data == b"y"


def test_a_late_reader_holds_drained_back(made):
    receiver, sinks, criu = made
    pipe = criu.announce("pages-1.img")
    while "pages-1.img" not in sinks:
        time.sleep(0.001)
    sinks["pages-1.img"].gate.clear()
    criu.write(pipe, b"z" * 10000)
    assert not receiver.drained(0.1)
    sinks["pages-1.img"].gate.set()
    assert receiver.drained(5)
    assert len(sinks["pages-1.img"].data) == 10000


@pytest.mark.parametrize("close_first", [False, True])
def test_a_receiver_that_failed_or_stopped_breaks_every_pipe(made, close_first):
    receiver, sinks, criu = made
    one = criu.announce("pages-1.img")
    while "pages-1.img" not in sinks:
        time.sleep(0.001)
    if close_first:
        receiver.close()
    else:
        sinks["pages-1.img"].filled = lambda _count: 1 / 0
        os.write(one, b"boom")
        with pytest.raises(ZeroDivisionError):
            while True:
                receiver.drained(0.05)
    with pytest.raises(OSError):  # a broken pipe or a closed socket, at once or with the next file
        for _ in range(50):
            os.write(one, b"more")
            os.write(criu.announce("next.img"), b"x")
            time.sleep(0.05)
    assert sinks["pages-1.img"].state == "given up"


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", ""])
def test_names_that_leave_the_folder_are_refused(made, name):
    receiver, sinks, criu = made
    with contextlib.suppress(OSError):  # it may hang up before the pipe is sent
        criu.announce(name)
    with pytest.raises(StreamError, match="announced"):
        while True:
            receiver.drained(0.05)
    assert sinks == {}


def test_a_path_too_long_for_a_socket_is_said(tmp_path):
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    with pytest.raises(StreamError, match="shorter base folder"):
        Receiver(deep, lambda _: Kept())


def test_small_files_lie_in_the_folder_and_waiting_says_that_it_is_alive(tmp_path):
    intake = Intake(tmp_path, Pages(Reserve(0, 0), Store(), None))
    criu, beats = Criu(tmp_path), []
    pipe = criu.announce("core-1.img")

    def alive():
        beats.append(1)
        criu.write(pipe, b"late")

    intake.drained(alive)
    assert beats == [1]
    assert (tmp_path / "core-1.img").read_bytes() == b"late"
    criu.close()
    intake.close()
    intake.close()
