"""A process that ends while its memory arrives: the number of its descriptor may be another's by then."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from spotsurfer_agent.linux import userfaultfd
from spotsurfer_agent.restore import pager_process
from spotsurfer_agent.restore.pager import page_fault_server
from spotsurfer_agent.restore.pager.feeder import Feeder, Layout, Order
from spotsurfer_agent.restore.pager.page_fault_server import Image, Task, Unplaceable
from spotsurfer_agent.restore.pager.process_memory import Run, Space
from spotsurfer_wire.linux.buffers import PAGE


def a_task(space: Space) -> Task:
    fd = os.open("/dev/null", os.O_RDONLY)
    return Task(7, "pages-1.img", (fd, space), lambda _: None, lambda *_: None)


def two_runs() -> Space:
    return Space([Run(0x10000, 0, bytearray(4)), Run(0x90000, 4, bytearray(4))])


def test_nothing_is_put_after_the_process_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def copy(fd: int, to: int, source: int, length: int) -> tuple[int, int]:
        asked.append(to)
        return (0, errno.ESRCH)

    monkeypatch.setattr(userfaultfd, "copy", copy)
    task = a_task(two_runs())
    task.put(0, 8, 0x1000)
    assert asked == [0x10000]
    assert task.over
    assert task.missing == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(task.fd)


def test_who_waited_for_a_turn_while_the_process_ended_puts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its descriptor was closed meanwhile; the number may belong to another process's memory by now."""
    asked: list[int] = []
    monkeypatch.setattr(userfaultfd, "copy", lambda fd, to, source, length: (asked.append(to), (length, 0))[1])
    task = a_task(two_runs())
    putter = threading.Thread(target=task.put, args=(0, 8, 0x1000))
    with task._turns.alone():
        putter.start()
        time.sleep(0.1)  # it looked, found the process alive, and waits
        task.over = True
    putter.join(5)
    assert not putter.is_alive()
    assert asked == []


def test_pages_go_to_their_addresses_and_what_can_not_be_put_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int, int]] = []
    monkeypatch.setattr(
        userfaultfd, "copy", lambda fd, to, source, length: (asked.append((to, source, length)), (length, 0))[1]
    )
    task = a_task(two_runs())
    task.put(2, 6, 0x1000)
    assert asked == [(0x10000 + 2 * PAGE, 0x1000, 2 * PAGE), (0x90000, 0x1000 + 2 * PAGE, 2 * PAGE)]
    assert task.missing == 4
    monkeypatch.setattr(userfaultfd, "copy", lambda *_: (0, errno.EFAULT))
    with pytest.raises(Unplaceable, match="process 7"):
        task.put(0, 2, 0x1000)
    task.close()


def test_a_child_with_the_number_of_a_process_that_ended_is_still_served(tmp_path: Path) -> None:
    nothing = Image({}, cast("Layout", None), cast("Order", None))
    server = page_fault_server.Server(
        tmp_path, nothing, cast("Feeder", SimpleNamespace(tasks={"pages-1.img": []}, idle=False)), lambda _: None
    )
    ended = a_task(Space())
    server._tasks[ended.fd] = ended
    ended.close()
    child = a_task(two_runs())
    assert child.fd == ended.fd, "the kernel gives the lowest free number"
    server._tasks[child.fd] = child
    server._let_go(ended.fd, ended)
    assert server._tasks == {child.fd: child}
    assert not child.over
    for thing in (child, server._listener, server._poll):
        thing.close()


def test_a_pager_that_has_closed_its_files_counts_as_gone_though_the_kernel_is_not_done_with_it():
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)})  # the one that dies gets the processor only when we wait: we see it midway
    try:
        midway = [dying() for _ in range(50)]
    finally:
        os.sched_setaffinity(0, mine)
    assert not any(midway)


def dying() -> bool:
    """Whether a process counts as alive just when the last of its descriptors was closed by its death."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        while True:
            time.sleep(100.0)
    os.close(write)
    time.sleep(0.002)
    assert pager_process.alive(pid)
    os.kill(pid, signal.SIGKILL)
    os.read(read, 1)
    counts = pager_process.alive(pid)
    os.waitpid(pid, 0)
    os.close(read)
    return counts
