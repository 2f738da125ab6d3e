"""A heap-like job: Python dicts and lists with random updates and steady growth. Argument: bytes of memory, roughly."""

import os
import random
import sys
import time
from pathlib import Path

RECORD_BYTES = 700  # of one record with its objects, measured
COMMAND = Path("command")


def say(text: str) -> None:
    """One line, at once: output kept in a buffer would be part of an image."""
    os.write(1, text.encode() + b"\n")


def record(number: int) -> dict[str, object]:
    """Something as programs keep it."""
    return {
        "id": number,
        "name": f"record-{number}",
        "values": [random.random() for _ in range(8)],
        "seen": {number: number % 7},
    }


records = {i: record(i) for i in range(int(sys.argv[1]) // RECORD_BYTES)}
say(f"ready 0 {len(records)}")
line = 0
while True:
    say(f"n {line} {time.monotonic_ns()} {time.clock_gettime_ns(time.CLOCK_REALTIME)}")
    line += 1
    if COMMAND.exists():
        COMMAND.unlink()
        for _ in range(len(records) // 25):  # at random places, so many pages change a little
            records[random.randrange(len(records))]["values"] = [random.random() for _ in range(8)]
        records.update({n: record(n) for n in range(len(records), len(records) + len(records) // 50)})
        say(f"trained {len(records)} 0")
    time.sleep(0.002)
