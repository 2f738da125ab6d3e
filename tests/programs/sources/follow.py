"""follow.py ROTATIONS: `tail -F` follows a log that grows and is rotated; it has to see each line and to live to the end."""

import hashlib
import subprocess
import sys
import time
from pathlib import Path

log, followed = Path("log"), Path("followed.txt")
log.touch()
with followed.open("wb") as out:
    tail = subprocess.Popen(["tail", "-F", str(log)], stdout=out)
time.sleep(1)
written = 0
for rotation in range(int(sys.argv[1])):
    for line in range(100):
        with log.open("a") as f:
            f.write(hashlib.sha256(f"{rotation} {line}".encode()).hexdigest() + "\n")
        written += 1
        time.sleep(0.1)
    while len(followed.read_text().splitlines()) < written:
        if tail.poll() is not None:
            sys.exit(f"tail ended with {tail.returncode}")
        time.sleep(0.1)
    log.rename("old")
    log.touch()
    time.sleep(2)
tail.terminate()
print("tail ended with", tail.wait(), "and has seen", len(followed.read_text().splitlines()), "of", written, "lines")
