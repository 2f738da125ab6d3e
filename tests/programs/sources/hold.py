"""hold.py WHAT SECONDS: holds something that can't be saved while it counts; prints hashes."""

import ctypes
import hashlib
import mmap
import os
import socket
import sys
import time


def outside() -> object:
    """A connection out of the job, to its first machine. The undisturbed run has no network."""
    if os.environ["SPOTSURFER_JOB"] == "undisturbed":
        return None
    for _ in range(200):
        try:
            return socket.create_connection(("10.201.0.1", 7000), 5)
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise TimeoutError("nobody listens")


def huge() -> object:
    return mmap.mmap(-1, 2 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)


def ring() -> object:
    """An io_uring where there is one; without, the program reads and writes as ever."""
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.syscall(425, 8, ctypes.create_string_buffer(120))


held = {"outside": outside, "huge": huge, "ring": ring, "nothing": lambda: None}[sys.argv[1]]()
h = b"begin"
for i in range(int(sys.argv[2]) * 10):
    for _ in range(1000):
        h = hashlib.sha256(h).digest()
    if i % 10 == 0:
        print(i, h.hex(), flush=True)
    time.sleep(0.09)
os._exit(0)
