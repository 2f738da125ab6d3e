"""hold.py WHAT SECONDS: holds something that can't be saved while it counts; prints hashes."""

# ruff: noqa: PTH102, PTH123

import ctypes
import hashlib
import mmap
import os
import socket
import subprocess
import sys
import time


def device() -> object:
    return os.open("/dev/fuse", os.O_RDWR)


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


def fuse() -> object:
    """A file system in user space, mounted inside, with a file open on it."""
    with open("disk.img", "wb") as f:
        f.truncate(8 << 20)
    subprocess.run(["mke2fs", "-q", "-F", "disk.img"], check=True)
    os.mkdir("mounted")
    server = subprocess.Popen(["fuse2fs", "-f", "disk.img", "mounted"], stdout=2)
    while not os.path.ismount("mounted"):
        time.sleep(0.05)
    return server, open("mounted/file", "w")


def huge() -> object:
    return mmap.mmap(-1, 2 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)


def ring() -> object:
    """An io_uring where there is one; without, the program reads and writes as ever."""
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.syscall(425, 8, ctypes.create_string_buffer(120))


held = {"device": device, "outside": outside, "fuse": fuse, "huge": huge, "ring": ring, "nothing": lambda: None}[sys.argv[1]]()
h = b"begin"
for i in range(int(sys.argv[2]) * 10):
    for _ in range(1000):
        h = hashlib.sha256(h).digest()
    if i % 10 == 0:
        print(i, h.hex(), flush=True)
    time.sleep(0.09)
if isinstance(held, tuple):
    held[1].close()
    subprocess.run(["fusermount3", "-u", "mounted"], check=False)
    held[0].wait()
os._exit(0)
