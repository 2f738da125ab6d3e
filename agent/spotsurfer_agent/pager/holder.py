"""A dead pager must kill the job: when the last copy of a userfaultfd closes, every page that had not come yet reads as zeros.

So two holders share the pager's table of descriptors (clone with CLONE_FILES) and thereby hold whatever it opens, from the
instant at which it does. When the pager dies without having said that it is done, a holder notes the loss, kills the job, and
only then goes. They also watch each other: the one that is left makes a new twin. Both have a single thread, so that this can
be done at any time, as it could not be in the pager.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from spotsurfer_agent.cgroup import JobCgroup
from spotsurfer_agent.pager.plan import Loss, Plan

_CLONE_FILES = 0x400
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_SENTENCE = "the process that brought the job's memory died: the job was killed before it could see a wrong page"
# Keeps the interpreter's lock, so that the child's only thread owns it.
_libc = ctypes.PyDLL(None, use_errno=True)


class Holders:
    """What the pager has of them. Made before it has a second thread."""

    def __init__(self, plan: Plan) -> None:
        self._over_read, self._over = os.pipe()  # readable: the pager is done
        me = os.getpid()
        if _clone() == 0:
            leave("holder", lambda: _Holder(plan, me, self._over_read).run())

    def dismiss(self) -> None:
        """All memory is there, or the job never ran: the holders go with the pager."""
        os.write(self._over, b"x")


class _Holder:
    def __init__(self, plan: Plan, pager: int, over: int) -> None:
        self._plan, self._pager, self._over = plan, os.pidfd_open(pager), over
        self._server = pager

    def run(self) -> None:
        """Until the pager is gone."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        twin = self._twin()
        while True:
            watched = select.poll()
            for fd in (self._pager, twin):
                watched.register(fd, select.POLLIN)
            gone = [fd for fd, _ in watched.poll()]
            if self._pager in gone:
                break
            os.close(twin)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)
            twin = self._twin()
        if not select.select([self._over], [], [], 0)[0]:
            lose(self._plan, Loss(_SENTENCE))

    def _twin(self) -> int:
        """A second holder: a descriptor of it. In the second one this is a descriptor of the first."""
        me = os.getpid()
        child = _clone()
        return os.pidfd_open(me if child == 0 else child)


def lose(plan: Plan, loss: Loss) -> None:
    """Note that the job is lost and kill it; returns when nothing of it runs."""
    while True:
        with contextlib.suppress(OSError):
            loss.write(Path(plan.folder))
            break
        time.sleep(0.1)  # a full disk: the job stands still at its missing pages meanwhile
    group = JobCgroup(plan.cgroup)
    while not group.kill():
        time.sleep(0.1)


def _clone() -> int:
    """Like fork, but with one table of descriptors for both. 0 in the child."""
    number = _SYS_CLONE[os.uname().machine]
    zero = ctypes.c_ulong(0)
    pid = int(_libc.syscall(ctypes.c_long(number), ctypes.c_ulong(_CLONE_FILES | signal.SIGCHLD), zero, zero, zero, zero))
    if pid < 0:
        raise OSError(ctypes.get_errno(), f"clone: {os.strerror(ctypes.get_errno())}")
    return pid


def leave(name: str, body: Callable[[], None]) -> NoReturn:
    """Run a child's body; nothing returns into the parent's code, and nothing of its is flushed or closed twice."""
    try:
        body()
    except BaseException as e:
        sys.stderr.write(f"{name}: {type(e).__name__}: {e}\n")
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)
