"""Bytes of one pipe, copied by several threads: in order, whole, and with every failure told."""

from __future__ import annotations

import contextlib
import os
import select
import threading

import pytest
from spotsurfer_agent.criu.images import StreamError
from spotsurfer_agent.linux.processors import lane_count
from spotsurfer_agent.save import stream


@pytest.fixture
def pipe():
    read, write = os.pipe()
    os.set_blocking(read, False)
    yield read, write
    for fd in (read, write):
        with contextlib.suppress(OSError):
            os.close(fd)


def feed(write, data, pieces):
    """All of it through the pipe in pieces of changing sizes, and the pipe's end."""

    def work():
        rest, sizes = memoryview(data), iter(pieces)
        while rest:
            n = os.write(write, rest[: next(sizes)])
            rest = rest[n:]
        os.close(write)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def wait_for(read):
    look = select.poll()
    look.register(read, select.POLLIN)
    look.poll(5000)


def endless(*sizes):
    while True:
        yield from sizes


@pytest.mark.parametrize("rooms", [(1 << 20,), (5 << 20, 4096, 70_001)])
@pytest.mark.parametrize("pieces", [(1 << 20,), (4096, 100, 65536, 1)])
@pytest.mark.parametrize(("processors", "lanes"), [(2, 2), (16, 6)])
def test_all_bytes_in_order(pipe, rooms, pieces, processors, lanes, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(processors)))
    assert lane_count(stream.LANES_MIN, stream.LANES_MAX, stream.PROCESSORS_EACH) == lanes
    read, write = pipe
    data = os.urandom(9 << 20)
    thread, room_sizes, found = feed(write, data, endless(*pieces)), endless(*rooms), bytearray()
    with contextlib.closing(stream.Lanes()) as several:
        while True:
            room = bytearray(next(room_sizes))
            count = several.fill(read, memoryview(room), lambda: wait_for(read))
            found += room[:count]
            if count < len(room):
                break
    thread.join()
    assert found == data


def test_nothing_counts_before_it_was_copied(pipe, monkeypatch):
    """A copy that hangs holds `fill` back."""
    read, write = pipe
    go, copying = threading.Event(), threading.Event()
    plain = os.readv

    def slow(fd, rooms):
        copying.set()
        go.wait()
        return plain(fd, rooms)

    monkeypatch.setattr(stream.os, "readv", slow)
    os.write(write, b"x" * 4096)
    os.close(write)
    room, done = bytearray(8192), threading.Event()
    with contextlib.closing(stream.Lanes()) as several:
        thread = threading.Thread(target=lambda: (several.fill(read, memoryview(room), lambda: None), done.set()))
        thread.start()
        assert copying.wait(5)
        assert not done.wait(0.2)
        go.set()
        assert done.wait(5)
        thread.join()
    assert room[:4096] == b"x" * 4096


def test_a_copy_that_fails_is_told(pipe, monkeypatch):
    read, write = pipe

    def fails(_fd, _rooms):
        raise OSError(14, "Bad address")

    monkeypatch.setattr(stream.os, "readv", fails)
    os.write(write, b"x" * 4096)
    os.close(write)
    with contextlib.closing(stream.Lanes()) as several, pytest.raises(OSError, match="Bad address"):
        several.fill(read, memoryview(bytearray(8192)), lambda: None)


def test_large_rooms_take_lanes_and_small_ones_do_not(tmp_path, monkeypatch):
    """The receiver of a stream uses them where they help, and can be stopped while it waits."""
    made = []
    plain = stream.Lanes
    monkeypatch.setattr(stream, "Lanes", lambda: made.append(1) or plain())
    for size, wanted in ((1000, 0), (stream.WORTH_BYTES, 1)):
        read, write = os.pipe()
        receiver = stream.Receiver(tmp_path, lambda _name, size=size: Sink(size))
        sink = Sink(size)
        failed = []
        thread = threading.Thread(target=lambda: failed.append(_failure(receiver, read, sink)))  # noqa: B023
        thread.start()
        os.write(write, b"y" * 3000)
        receiver._halt()
        thread.join(10)
        receiver.close()
        assert isinstance(failed[0], StreamError), failed
        assert len(made) == wanted
        for fd in (read, write):
            os.close(fd)


def _failure(receiver, fd, sink):
    try:
        receiver.pump("x", fd, sink)
    except StreamError as e:
        return e
    return None


class Sink:
    """Takes anything."""

    def __init__(self, size):
        self.size, self.count = size, 0

    def room(self):
        return memoryview(bytearray(self.size))

    def filled(self, count):
        self.count += count

    def end(self):
        pass

    def abort(self):
        pass
