"""A job that writes to a shared file system in each way; it fails if a file is not as it left it."""

import mmap
import os
import sys
import time

turns = int(sys.argv[1])
log = open("out/log.txt", "a", buffering=1)  # noqa: SIM115, PTH123
table = open("out/table.txt", "w", buffering=1)  # noqa: SIM115, PTH123 -- at its end, without O_APPEND
both = [os.open(f"out/{name}", os.O_RDWR | os.O_CREAT, 0o644) for name in ("count.bin", "mapped.bin")]
for fd in both:
    os.ftruncate(fd, 1 << 20)
seen = mmap.mmap(both[1], 1 << 20)
quiet = os.open("out/quiet.bin", os.O_RDWR | os.O_CREAT, 0o644)
os.pwrite(quiet, b"q" * 100_000, 0)
for i in range(turns):
    log.write(f"{i}\n")
    table.write(f"{i}\n")
    for name, now in (("count", os.pread(both[0], 8, 4096)), ("mapped", seen[4096:4104])):
        if int.from_bytes(now, "little") != i:
            sys.exit(f"{name} is at {int.from_bytes(now, 'little')} in turn {i}")
    os.pwrite(both[0], (i + 1).to_bytes(8, "little"), 4096)
    seen[4096:4104] = (i + 1).to_bytes(8, "little")
    print("turn", i, flush=True)
    time.sleep(0.02)
