"""Memory that is lent to a pipe: every byte arrives, and it is held until it was read."""

from __future__ import annotations

import fcntl
import os
import threading

import pytest
from spotsurfer_agent.restore.pager.image_files import COPIED_BELOW_BYTES, Lender

SIZE = 64 << 10


@pytest.fixture
def ends():
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, SIZE)
    open_ = {read, write}
    yield read, write, open_
    for fd in open_:
        os.close(fd)


def reading(fd, into, pause):
    def work():
        while piece := os.read(fd, 50_000):
            into.extend(piece)
            pause()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.parametrize("offset", [0, 1, 4095])
def test_every_byte_arrives_though_buffers_are_used_again(ends, offset):
    """As soon as a buffer is not held any more its owner fills it anew: what was lent must have been read by then."""
    read, write, open_ = ends
    found, sent = bytearray(), bytearray()
    thread = reading(read, found, lambda: None)
    lender = Lender(write, SIZE)
    buffers = [bytearray(300_000) for _ in range(3)]
    for turn in range(60):
        buffer = buffers[turn % 3]
        assert not _held(lender, buffer)
        buffer[:] = bytes([turn]) * len(buffer)
        data = memoryview(buffer)[offset:]
        lender.write(data)
        sent += data
        small = bytes([turn]) * (COPIED_BELOW_BYTES // 3)
        lender.write(memoryview(small))
        sent += small
    lender.settle()
    assert len(lender._lent) == 0
    os.close(write)
    open_.discard(write)
    thread.join()
    assert found == sent


def _held(lender, buffer):
    return any(view.obj is buffer for view, _ in lender._lent)


def test_it_is_held_until_it_was_read(ends):
    read, write, _ = ends
    lender = Lender(write, SIZE)
    data = os.urandom(COPIED_BELOW_BYTES)
    thread = threading.Thread(target=lambda: (lender.write(memoryview(data)), lender.settle()))
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    assert len(lender._lent) == 1
    got = b""
    while len(got) < len(data):
        got += os.read(read, len(data) - len(got))
    thread.join(5)
    assert not thread.is_alive()
    assert got == data
    assert not lender._lent


def test_a_reader_that_goes_away_is_told_and_nothing_hangs(ends):
    read, write, open_ = ends
    lender = Lender(write, SIZE)
    os.write(write, b"x")
    os.close(read)
    open_.discard(read)
    with pytest.raises(BrokenPipeError):
        lender.write(memoryview(bytes(1 << 20)))
    lender.settle()
    assert not lender._lent
