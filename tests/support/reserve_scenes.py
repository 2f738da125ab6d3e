"""Scenes on a minibox of what CRIU restores only from an image that was changed for it. See `pager.changes`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

from spotsurfer_wire.messages import Spec
from support.engine_kit import JOB, W, engine, newest, output, request, until

# Eight terabytes of addresses, as MariaDB reserves them; a part of them is memory, another part becomes that later. A child has
# the same addresses.
RESERVES = """
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
SIZE, PART = 8 << 40, 8 << 20
at = libc.mmap(None, SIZE, 0, 0x22, -1, 0)
assert at not in (None, ctypes.c_void_p(-1).value), os.strerror(ctypes.get_errno())
def use(offset, byte):
    assert libc.mprotect(at + offset, PART, 3) == 0, os.strerror(ctypes.get_errno())
    ctypes.memset(at + offset, byte, PART)
def holds(offset, byte):
    return ctypes.string_at(at + offset, PART) == bytes([byte]) * PART
use(SIZE // 2, 7)
child = os.fork()
print("ready", os.getpid(), flush=True)
while not os.path.exists("go"): time.sleep(0.01)
use(SIZE // 4, 9)
print("holds", holds(SIZE // 2, 7) and holds(SIZE // 4, 9), flush=True)
if child:
    os.waitpid(child, 0)
"""
# A program that has both ends of its control terminal, and that one as /dev/tty, too.
TTY = """
import os, time
child = os.fork()
if child:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.setsid()
near, far = os.openpty()
os.close(os.open(os.ttyname(far), os.O_RDWR))
tty = os.open("/dev/tty", os.O_RDWR)
print("ready", flush=True)
while not os.path.exists("go"): time.sleep(0.01)
os.write(tty, b"goes on")
print(os.read(near, 100).decode(), os.tcgetpgrp(tty) == os.getpid(), flush=True)
"""
PROGRAMS = {"reserves": (RESERVES, 2, "holds True"), "tty": (TTY, 1, "goes on True")}


def goes_on(name: str, way: str) -> None:
    """Saved, restored `lazy` or whole, saved again, restored again; and it goes on."""
    code, count, word = PROGRAMS[name]
    e = engine()
    e.origin = dataclasses.replace(e.origin, lazy=way == "lazy")
    e.start(Spec(JOB, ["/usr/bin/python3", "-c", code]))
    until(lambda: output(e).count(b"ready") == count)
    for number in (1, 2):
        e.save(request(number, final=True))
        e.kill()
        e.restore(newest(e.store), Spec(JOB, []))
    Path(e.scratch(), "work/go").touch()
    until(lambda: e.status().state is W.EXITED, 60.0)
    assert output(e).decode().count(word) == count, output(e)
    assert e.status().exit_code == 0
    e.kill()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
