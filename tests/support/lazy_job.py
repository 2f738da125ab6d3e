# ruff: noqa: PTH108, PTH123 -- runs with any Python
"""A job in which every page says which one it is. Argument: bytes. Counts, does what the file `order` says, and tells of it.
With `aligned` as a second argument one thread sleeps with its stack pointer at the beginning of a page.

Every turn looks at a few pages at random, and threads do so all the time: a wrong page ends the job with an error.
"""

import ctypes
import mmap
import os
import random
import struct
import sys
import threading
import time

PAGE = 4096
PAGES = int(sys.argv[1]) // PAGE
MOVED = 2048  # pages of a mapping that will move
NOISE = random.Random(7).randbytes(8 << 20)
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def expected(page, version=0):
    at = page * 509 % (len(NOISE) - PAGE)
    return struct.pack("<QQ", page, version) + NOISE[at : at + PAGE - 16]


def anonymous(size):
    return libc.mmap(None, size, 3, 0x22, -1, 0)


memory = mmap.mmap(-1, PAGES * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for number in range(PAGES):
    memory[number * PAGE : (number + 1) * PAGE] = expected(number)
mover = anonymous(2 * MOVED * PAGE)
for number in range(MOVED):
    ctypes.memmove(mover + number * PAGE, expected(number, 1), PAGE)
dropped = set()


# push rbx; mov rbx, rsp; and rsp, -4096; mov eax, 35 (nanosleep); syscall; mov rsp, rbx; pop rbx; ret
NAP = bytes.fromhex("53 4889e3 4881e400f0ffff b823000000 0f05 4889dc 5b c3")


def nap_aligned():
    code = mmap.mmap(-1, PAGE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(NAP)
    nap = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    while True:
        nap(ctypes.addressof((ctypes.c_long * 2)(1000, 0)), None)


def check(page):
    found = memory[page * PAGE : (page + 1) * PAGE]
    good = found == (bytes(PAGE) if page in dropped else expected(page))
    if not good:
        print("WRONG", page, found[:24].hex(), flush=True)
        os._exit(9)


def check_all(what):
    for page in range(PAGES):
        check(page)
    print("whole", what, flush=True)


def fork():
    child = os.fork()
    check_all("child" if child == 0 else "parent")
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def dontneed():
    first = PAGES - PAGES // 8
    with looking:
        memory.madvise(mmap.MADV_DONTNEED, first * PAGE, (PAGES - first) * PAGE)
        dropped.update(range(first, PAGES))
    for page in range(first, PAGES):
        check(page)
    print("whole dontneed", flush=True)


def remap():
    """Move the middle of a mapping elsewhere, give the rest back, and look at what was moved."""
    target = anonymous(MOVED * PAGE)
    half = MOVED // 2
    got = libc.mremap(mover + PAGE * (half // 2), half * PAGE, half * PAGE, 3, target)
    assert got == target, ctypes.get_errno()
    for page in range(half):
        assert ctypes.string_at(target + page * PAGE, PAGE) == expected(page + half // 2, 1), page
    for page in (0, half // 2 - 1, half // 2 + half, MOVED - 1):
        assert ctypes.string_at(mover + page * PAGE, PAGE) == expected(page, 1), page
    assert ctypes.string_at(mover + MOVED * PAGE, PAGE) == bytes(PAGE)
    libc.munmap(mover, PAGE * (half // 2))
    print("whole remap", flush=True)


looking = threading.Lock()


def look():
    chance = random.Random()
    while True:
        with looking:
            check(chance.randrange(PAGES))
        time.sleep(0.001)


DO = {"fork": fork, "dontneed": dontneed, "remap": remap, "all": lambda: check_all("all")}
for _ in range(4):
    threading.Thread(target=look, daemon=True).start()
if sys.argv[2:] == ["aligned"]:
    threading.Thread(target=nap_aligned, daemon=True).start()
turn = 0
while True:
    print("turn", turn, flush=True)
    turn += 1
    try:
        with open("order") as f:
            orders = f.read().split()
        os.unlink("order")
    except FileNotFoundError:
        orders = []
    for order in orders:
        DO[order]()
    time.sleep(0.01)
