"""Thread attributes that CRIU leaves out: allowed processors, I/O priority, timer slack, and the process's core file
filter.

The agent notes them while the tree stands still, and restores them before it runs again. Only attributes that differ from a
new thread's are noted. Standard library only: shims use it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from spotsurfer_wire.linux import procfs, syscalls

from spotsurfer_agent.host import shim_protocol

NAME = "attributes.json"  # of an image, and of a restore
PROCESSORS, IO, SLACK, CORE = "processors", "io", "slack", "core"
_USUAL = {IO: 0, SLACK: 50_000, CORE: 0x33}  # ioprio_set(2), PR_SET_TIMERSLACK of prctl(2), core(5)

Row = dict[str, Any]


def note(images: Path, pids: Iterable[int]) -> None:
    """Note the attributes of these processes, which stand still, in an image. Never raises: an ended thread needs nothing."""
    rows, ours = {}, os.sched_getaffinity(0)
    for pid, thread in _threads(pids):
        with contextlib.suppress(OSError, ValueError):
            if row := _odd(pid, thread, ours):
                rows[procfs.number_inside(thread)] = row
    if rows:
        with contextlib.suppress(OSError):
            (images / NAME).write_text(json.dumps(rows))


def _odd(pid: int, thread: int, ours: set[int]) -> Row:
    """Unusual attributes of a thread. `ours`: the processors that a thread gets on this machine by default."""
    processors = os.sched_getaffinity(thread)
    found: Row = {IO: syscalls.io_priority(thread), SLACK: int(procfs.text(thread, "timerslack_ns"))}
    if pid == thread:
        found[CORE] = int(procfs.text(pid, "coredump_filter") or "33", 16)
    row = {name: value for name, value in found.items() if value != _USUAL[name]}
    return row | ({PROCESSORS: sorted(processors)} if ours - processors else {})


def restored(folder: Path, pids: Iterable[int]) -> None:
    """Set them before the restored job's first instruction. Never raises: a machine may lack the processors or the right."""
    rows = shim_protocol.read_json(folder / NAME)
    for _, thread in _threads(pids) if rows else ():
        with contextlib.suppress(OSError, ValueError):
            row = (rows or {}).get(str(procfs.number_inside(thread)))
            if isinstance(row, dict):
                _give(thread, row)


def _give(thread: int, row: Row) -> None:
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        # If this machine has none of them, all are allowed, as for a thread that never asked for any.
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
