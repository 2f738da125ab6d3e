"""A job that says what the kernel notes of its threads beside what CRIU carries, after it asked for values of its own."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from pathlib import Path

libc = ctypes.CDLL(None)
IOPRIO_SET, IOPRIO_GET, PR_SET_TIMERSLACK, PR_GET_TIMERSLACK = 251, 252, 29, 30


def looks(name: str, processor: int, priority: int, slack: int) -> None:
    os.sched_setaffinity(0, {processor})
    libc.syscall(IOPRIO_SET, 1, 0, 2 << 13 | priority)
    libc.prctl(PR_SET_TIMERSLACK, slack)
    while True:
        mine = [*os.sched_getaffinity(0)], libc.syscall(IOPRIO_GET, 1, 0) & 7, libc.prctl(PR_GET_TIMERSLACK)
        print(name, *mine, Path("/proc/self/coredump_filter").read_text().strip(), flush=True)
        time.sleep(0.05)


processors = [int(x) for x in sys.argv[1:]]
Path("/proc/self/coredump_filter").write_text("0x11")
threading.Thread(target=looks, args=("second", processors[-1], 6, 70_000), daemon=True).start()
looks("first", processors[0], 3, 90_000)
