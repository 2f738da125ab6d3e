"""logs.py LINES: grows several logs, rotates one, appends and truncates another, locks a third."""

# ruff: noqa: PTH123, SIM115

import fcntl
import hashlib
import os
import sys
import time
from pathlib import Path

h = b"begin"
rotating, number = open("rotating-0.log", "a", buffering=1), 0
append = os.open("append.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
same = os.dup(append)  # one position, two descriptors
last, locked = open("last.log", "w+"), open("locked.log", "a", buffering=1)
fcntl.flock(locked, fcntl.LOCK_EX)
for i in range(int(sys.argv[1])):
    for _ in range(4000):
        h = hashlib.sha256(h).digest()
    line = f"{i} {h.hex()}\n"
    rotating.write(line * 20)
    os.write(append if i % 2 else same, line.encode())
    last.write(line)
    last.flush()
    locked.write(line)
    if i % 50 == 49:
        rotating.close()
        number += 1
        rotating = open(f"rotating-{number}.log", "a", buffering=1)
        last.seek(0)
        last.truncate()
    if i % 100 == 99:
        Path("rotating-0.log").replace("rotating-old.log") if Path("rotating-0.log").exists() else None
        os.fsync(append)
        print(i, h.hex(), flush=True)
    time.sleep(0.005)
