"""A job that writes one number into all of its pages, one after the other, and then the next number, for ever.

So an image of one instant holds at most two numbers, the newer one before the older one. The pages lie right below the stack:
CRIU writes the highest addresses last, and those are what a receiver that is late would miss. Argument: number of pages.
"""

import ctypes
import sys

PAGES, PAGE, MAGIC = int(sys.argv[1]), 4096, b"STAMPED!"
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
with open("/proc/self/maps") as maps:  # noqa: PTH123
    stack = next(int(line.split("-")[0], 16) for line in maps if "[stack]" in line)
size = PAGES * PAGE
place = (stack - (24 << 20) - size) // PAGE * PAGE
at = libc.mmap(place, size, 3, 0x100022, -1, 0)  # private, anonymous, at this address or not at all
assert at == place, ctypes.get_errno()
memory = memoryview((ctypes.c_char * size).from_address(place)).cast("B")
number = 0
while True:
    number += 1
    stamp = MAGIC + number.to_bytes(8, "little")
    for page in range(0, size, PAGE):
        memory[page : page + 16] = stamp
    if number % 20 == 0:
        print("turn", number, flush=True)
