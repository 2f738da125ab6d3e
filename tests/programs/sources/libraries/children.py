"""children.py ROUNDS: psutil watches this process's children: asked anew in each round, all are there and are the same.

What psutil asked before a move (a psutil.Process that is kept) counts as gone after it: it knows a process by its start.
"""

import subprocess
import sys
import time

import psutil

watched = [subprocess.Popen(["sleep", "1000"]) for _ in range(3)]
pids = {p.pid for p in watched}
seen = set()
for r in range(int(sys.argv[1])):
    short = subprocess.Popen(
        ["/usr/bin/python3", "-c", f"import hashlib; print(hashlib.sha256(b'{r}').hexdigest())"], stdout=subprocess.PIPE
    )
    both = {c.pid for c in psutil.Process().children()} == pids | {short.pid}
    text = short.communicate()[0].decode()
    kids = psutil.Process().children()
    seen.add(
        (both, {c.pid for c in kids} == pids, all(c.status() != psutil.STATUS_ZOMBIE and c.name() == "sleep" for c in kids))
    )
    seen.add(psutil.pid_exists(short.pid))
    if r % 20 == 0:
        print(r, text[:16], *sorted(c.name() for c in kids), flush=True)
    time.sleep(0.2)
print("all four seen, three left, all run; the short one is there:", *sorted(seen, key=str))
for w in watched:
    w.terminate()
print(psutil.wait_procs([psutil.Process(p) for p in pids], 10)[1])
