"""A program whose interval timers have always run out unseen: it looks at them twice a second, they come each 20 ms."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import time

EACH_NS = 20_000_000
MONOTONIC, NONBLOCK = 1, 0o4000
libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """A line each half second: how often the descriptor's timer came, whether the signal came twice."""
    timer = libc.timerfd_create(MONOTONIC, NONBLOCK)
    libc.timerfd_settime(timer, 0, struct.pack("4q", 0, EACH_NS, 0, EACH_NS), None)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, EACH_NS / 1e9, EACH_NS / 1e9)
    while True:
        time.sleep(0.5)
        came = int.from_bytes(os.read(timer, 8), "little")
        signals = [signal.sigtimedwait({signal.SIGALRM}, 0.3) is not None for _ in range(2)]
        print(came, all(signals), flush=True)


if __name__ == "__main__":
    main()
