"""What is asked of the kernel for other processes."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest
from spotsurfer_agent.linux import sockets
from spotsurfer_wire.linux import syscalls


def test_an_end_of_a_pipe_is_not_kept():
    """Who reads the pipe would wait for ever for its end."""
    reads, writes = os.pipe()
    with pytest.raises(OSError) as failed, syscalls.borrowed_socket(os.getpid(), writes):
        pass
    assert failed.value.errno == errno.ENOTSOCK
    sockets.leave_repair([os.getpid()])
    os.close(writes)
    os.set_blocking(reads, False)
    assert os.read(reads, 1) == b""
    os.close(reads)


def test_a_socket_is_borrowed_and_given_back():
    """The other process's own descriptor stays as it is."""
    one, other = socket.socketpair()
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    with syscalls.borrowed_socket(os.getpid(), one.fileno()) as found:
        found.send(b"x")
    assert other.recv(1) == b"x"
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before
    one.send(b"y")
    assert other.recv(1) == b"y"
    one.close()
    other.close()
