"""The image server, with a CRIU that is played by the test: what it serves, and that its end is no failure here."""

from __future__ import annotations

import os
import queue
import socket
import struct
from pathlib import Path

import pytest
from spotsurfer_agent.criu.images import StreamError
from spotsurfer_agent.restore.pager.image_files import SOCKET, Streamer

WAIT_SECONDS = 10.0
TEXT = b"all of it"


def asks(control: socket.socket, name: str) -> None:
    body = b"\x0a" + bytes([len(name)]) + name.encode()
    control.sendall(struct.pack("=I", len(body)) + body)


def half_a_question(control: socket.socket) -> None:
    control.sendall(struct.pack("=I", 9) + b"\x0a")


def answer_unread(control: socket.socket) -> None:
    asks(control, "inventory.img")
    assert control.recv(1, socket.MSG_PEEK)  # it is there, and stays


def no_pipe_yet(control: socket.socket) -> None:
    asks(control, "inventory.img")
    control.recv(100)


def nothing(_control: socket.socket) -> None: ...


@pytest.fixture
def served(tmp_path: Path):
    ends: queue.Queue[Exception | None] = queue.Queue()
    Streamer(tmp_path, lambda name: iter([memoryview(TEXT)]) if name == "inventory.img" else None, ends.put).start()
    control = socket.socket(socket.AF_UNIX)
    control.connect(str(tmp_path / SOCKET))
    with control:
        yield control, ends


def test_a_file_comes_through_the_pipe_that_was_passed_and_a_missing_one_is_told(served) -> None:
    control, ends = served
    asks(control, "core-7.img")
    assert control.recv(100) == b"\x02\0\0\0\x08\0"
    asks(control, "inventory.img")
    assert control.recv(100) == b"\x02\0\0\0\x08\x01"
    read, write = os.pipe()
    socket.send_fds(control, [b"\0"], [write])
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == TEXT
    control.close()
    assert ends.get(timeout=WAIT_SECONDS) is None


@pytest.mark.parametrize("before", [nothing, half_a_question, answer_unread, no_pipe_yet])
def test_whenever_criu_is_killed_it_is_gone_and_nothing_failed_here(served, before) -> None:
    control, ends = served
    before(control)
    control.close()
    assert ends.get(timeout=WAIT_SECONDS) is None


def test_a_criu_that_is_gone_before_its_answer_was_sent(tmp_path: Path) -> None:
    """It is killed while its file is looked for."""
    ends: queue.Queue[Exception | None] = queue.Queue()
    with socket.socket(socket.AF_UNIX) as control:
        Streamer(tmp_path, lambda _name: control.close(), ends.put).start()
        control.connect(str(tmp_path / SOCKET))
        asks(control, "inventory.img")
        assert ends.get(timeout=WAIT_SECONDS) is None


def test_a_question_without_a_pipe_is_a_failure(served) -> None:
    control, ends = served
    no_pipe_yet(control)
    control.sendall(b"\0")
    failure = ends.get(timeout=WAIT_SECONDS)
    assert isinstance(failure, StreamError)
    assert "inventory.img" in str(failure)
