"""What CRIU leaves out of a thread: on which processors it may run, with which I/O priority, how exact its timers are, and what
goes into a core file of its process. Noted while the tree stands still, and given back before it runs again.

Only what differs from what every thread has at its start is noted. Standard library only: shims use it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from spotsurfer_wire.linux import procfs

from spotsurfer_agent.host import shim_protocol
from spotsurfer_agent.linux import syscalls

NAME = "attributes.json"  # of an image, and of a restore
PROCESSORS, IO, SLACK, CORE = "processors", "io", "slack", "core"
_USUAL = {IO: 0, SLACK: 50_000, CORE: 0x33}  # ioprio_set(2), PR_SET_TIMERSLACK of prctl(2), core(5)

Row = dict[str, Any]


def note(images: Path, pids: Iterable[int]) -> None:
    """Into an image of these processes, which stand still. Never raises: what ends meanwhile needs nothing."""
    rows, ours = {}, os.sched_getaffinity(0)
    for pid, thread in _threads(pids):
        with contextlib.suppress(OSError, ValueError):
            if row := _odd(pid, thread, ours):
                rows[procfs.number_inside(thread)] = row
    if rows:
        with contextlib.suppress(OSError):
            (images / NAME).write_text(json.dumps(rows))


def _odd(pid: int, thread: int, ours: set[int]) -> Row:
    """`ours`: the processors of this machine that a thread has which asked for none."""
    processors = os.sched_getaffinity(thread)
    found: Row = {IO: syscalls.io_priority(thread), SLACK: int(procfs.text(thread, "timerslack_ns"))}
    if pid == thread:
        found[CORE] = int(procfs.text(pid, "coredump_filter") or "33", 16)
    row = {name: value for name, value in found.items() if value != _USUAL[name]}
    return row | ({PROCESSORS: sorted(processors)} if ours - processors else {})


def keep(folder: Path, text: bytes) -> None:
    """What an image says of it, for `restored`. Raises OSError."""
    (folder / NAME).write_bytes(text)


def restored(folder: Path, pids: Iterable[int]) -> None:
    """Before the first instruction of a job that was restored. Never raises: a machine may lack the processors or the right."""
    rows = shim_protocol.read_json(folder / NAME)
    for _, thread in _threads(pids) if rows else ():
        with contextlib.suppress(OSError, ValueError):
            row = (rows or {}).get(str(procfs.number_inside(thread)))
            if isinstance(row, dict):
                _give(thread, row)


def _give(thread: int, row: Row) -> None:
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        # Where none of them is here, all are right, as with a thread that never asked for any.
        if wanted := {int(x) for x in row[PROCESSORS]} & os.sched_getaffinity(thread):
            os.sched_setaffinity(thread, wanted)
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        syscalls.set_io_priority(thread, int(row[IO]))
    for name, file, form in ((SLACK, "timerslack_ns", "{}"), (CORE, "coredump_filter", "{:#x}")):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            Path(f"/proc/{thread}/{file}").write_text(form.format(int(row[name])))


def _threads(pids: Iterable[int]) -> Iterator[tuple[int, int]]:
    for pid in pids:
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 -- names are wanted
                yield pid, int(name)
