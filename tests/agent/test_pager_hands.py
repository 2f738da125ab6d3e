"""Processes that write memory into a job that stands still: how many there are, and what is heard of them."""

from __future__ import annotations

import json
import os
import select
import socket
from collections.abc import Iterator

import pytest
from spotsurfer_agent.linux.processors import worker_count
from spotsurfer_agent.restore.pager import __main__ as pager
from spotsurfer_agent.restore.pager.process_memory import GONE, NOBODY, Standing, WorkerFailed, Workers
from spotsurfer_wire.chunks.reader import BadChunk

G = 1 << 30


@pytest.mark.parametrize(
    ("processors", "gigabytes", "count"),
    [(1, 99, 0), (2, 99, 0), (7, 99, 0), (8, 99, 2), (16, 99, 4), (16, 3, 0), (16, 4, 4), (192, 99, pager.WORKERS_MAX)],
)
def test_as_many_as_are_of_use(monkeypatch: pytest.MonkeyPatch, processors: int, gigabytes: int, count: int) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(processors)))
    assert worker_count(gigabytes * G, pager.WORKERS_BYTES_MIN, pager.WORKERS_MAX) == count


def talker(number: int, line: socket.socket) -> None:
    """Says that it has heard, and then what the test wants of its number."""
    _, fds, _, _ = socket.recv_fds(line, 1, 9)
    with line.makefile() as lines:
        ((process, pid, ranges),) = json.loads(lines.readline())
    assert (process, pid, ranges) == (7, os.getppid(), [[4096, 12288]])
    assert os.fstat(fds[0]), "the descriptor came along"
    wants = [[{"missing": 5}, {"missing": 0}], [{"error": "x", "blame": "image"}], [{"error": "y", "blame": "machine"}], []]
    for what in wants[number]:
        line.sendall(json.dumps(what).encode() + b"\n")


@pytest.fixture
def hands() -> Iterator[Workers]:
    made = Workers(4, talker)
    me = Standing(os.getpid(), os.pidfd_open(os.getpid()), [(4096, 12288)])
    made.give([(7, me)])
    me.close()
    yield made
    made.dismiss()
    assert [os.waitpid(pid, 0)[1] for pid in made.pids] == [0] * 4


def test_what_each_of_them_says_is_known_and_one_that_is_gone_too(hands: Workers) -> None:
    lines = hands.busy
    assert len(lines) == 4
    assert hands.missing_bytes == 8192
    said = [heard(hands, fd) for fd in lines]
    assert said[0] is None
    assert lines[0] not in hands.busy
    assert [type(e) for e in said[1:]] == [BadChunk, WorkerFailed, WorkerFailed]
    assert [str(e) for e in said[1:]] == ["x", "y", GONE]


def heard(hands: Workers, fd: int) -> Exception | None:
    """All that one has to say, or what it means."""
    try:
        while fd in hands.busy:
            assert select.select([fd], [], [], 20)[0]
            hands.hear(fd)
    except (BadChunk, WorkerFailed) as e:
        return e
    return None


def test_nobody_has_nothing_to_do() -> None:
    assert not NOBODY
    NOBODY.give([])
    NOBODY.dismiss()
    assert (list(NOBODY.busy), NOBODY.missing_bytes) == ([], 0)
