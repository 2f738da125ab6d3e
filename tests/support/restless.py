"""A process whose memory never keeps still: written, given back, mapped anew, moved, grown, shared with children.

restless.py SEED BYTES
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import sys
import time

PAGE = 4096
AREAS = 5
MREMAP_MAYMOVE, MREMAP_FIXED = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = _libc.mremap.restype = ctypes.c_void_p
chance = random.Random(int(sys.argv[1]))
size = int(sys.argv[2])


def mapped(at: int = 0) -> int:
    fixed = 0x10 if at else 0
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | fixed
    return _libc.mmap(ctypes.c_void_p(at), ctypes.c_size_t(size), 3, flags, -1, ctypes.c_long(0))


def moved(start: int, to: int) -> None:
    flags = MREMAP_MAYMOVE | MREMAP_FIXED
    sizes = (ctypes.c_size_t(size), ctypes.c_size_t(size))
    assert _libc.mremap(ctypes.c_void_p(start), *sizes, flags, ctypes.c_void_p(to)) == to


def write(start: int, pages: int) -> None:
    for _ in range(pages):
        at = start + chance.randrange(size // PAGE) * PAGE
        ctypes.memmove(at, chance.randbytes(64), 64)


def exchange(a: int, b: int) -> None:
    """Two areas swap their places: each address has other contents, of pages that nobody wrote."""
    aside = mapped()
    moved(a, aside)
    moved(b, a)
    moved(aside, b)


def in_child(start: int) -> None:
    """Pages become shared for a moment; the child's writes are not the parent's."""
    if not (pid := os.fork()):
        write(start, 20)
        os._exit(0)
    write(start, 20)
    os.waitpid(pid, 0)


areas = [mapped() for _ in range(AREAS)]
for start in areas:
    for page in range(0, size, PAGE):
        ctypes.memmove(start + page, chance.randbytes(64), 64)
ACTS = (
    lambda: write(chance.choice(areas), 40),
    lambda: _libc.madvise(ctypes.c_void_p(chance.choice(areas)), ctypes.c_size_t(size // 4), mmap.MADV_DONTNEED),
    lambda: write(mapped(chance.choice(areas)), 100),
    lambda: exchange(*chance.sample(areas, 2)),
    lambda: in_child(chance.choice(areas)),
    lambda: time.sleep(0.005),
)
print("ready", flush=True)
while True:
    chance.choice(ACTS)()
