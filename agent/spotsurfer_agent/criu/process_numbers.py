"""The numbers of processes to come. CRIU leaves out how far a job's pid namespace has counted.

So new processes of a restored job would soon get numbers of processes that have ended, which never happens to a job that is not
moved. Programs that name files by process numbers would overwrite old files. The shim learns the next number while the tree
stands still, and sets it before the job runs again. Standard library only: shims use it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from spotsurfer_wire.linux import syscalls

from spotsurfer_agent.host import shim_protocol

NAME = "numbers.json"  # of an image, and of a restore
_LAST = Path("/proc/sys/kernel/ns_last_pid")  # of the namespace that who writes is in, see proc(5)


def following(pid: int) -> int | None:
    """The number that the next process gets in the pid namespace of this one; None if that can't be told. Never raises.

    The caller has a single thread.
    """
    with contextlib.suppress(OSError):
        out, into = os.pipe()

        def tell() -> None:
            number = os.getpid()
            _LAST.write_text(str(number - 1))  # as if this process had not been
            os.write(into, str(number).encode())

        try:
            return int(os.read(out, 20)) if _done_inside(pid, tell) else None
        finally:
            os.close(out)
            os.close(into)
    return None


def note(images: Path, number: object) -> None:
    """Note what the shim said in an image; older shims say nothing. Never raises."""
    if isinstance(number, int):
        with contextlib.suppress(OSError):
            (images / NAME).write_text(json.dumps({"next": number}))


def restored(folder: Path, pid: int) -> None:
    """Let the numbers go on as noted in the pid namespace of this process. Never raises. The caller has a single thread."""
    row = shim_protocol.read_json(folder / NAME) or {}
    if isinstance(number := row.get("next"), int):
        _done_inside(pid, lambda: _LAST.write_text(str(number - 1)))


def _done_inside(pid: int, work: Callable[[], object]) -> bool:
    """Do it in a process in the namespace; whether that was possible."""
    try:
        with syscalls.children_in_pid_namespace(pid):
            child = os.fork()
            if child == 0:
                with contextlib.suppress(Exception):
                    work()
                    os._exit(0)
                os._exit(1)
        return os.waitpid(child, 0)[1] == 0
    except OSError:
        return False
