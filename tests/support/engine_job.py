# ruff: noqa: SIM115, PTH108, PTH123 -- files that stay open are the point
"""A job of several processes that checks itself: pipes, a thread, loopback TCP, files in every state, memory, clocks.

Arguments: bytes of memory, number of turns. Ends with exit code 7.
"""

import mmap
import os
import socket
import sys
import threading
import time

SIZE, TURNS = int(sys.argv[1]), int(sys.argv[2])
memory = bytearray(os.urandom(1 << 20) * (SIZE >> 20))
there, to_child = os.pipe()
from_child, back = os.pipe()
if os.fork() == 0:
    os.close(to_child)
    os.close(from_child)
    with os.fdopen(there) as asked, os.fdopen(back, "w", buffering=1) as answer:
        for line in asked:
            answer.write(f"{int(line) * 2}\n")
    os._exit(0)
os.close(there)
os.close(back)
ask, hear = os.fdopen(to_child, "w", buffering=1), os.fdopen(from_child)

growing = open("growing.txt", "a", buffering=1)
gone = open("/tmp/gone", "w+", buffering=1)
os.unlink("/tmp/gone")
two = open("two", "w+")
os.link("two", "three")  # leaves a second name when the first goes
os.unlink("two")
shared = open("/dev/shm/map", "w+b")
shared.truncate(1 << 20)
mapped = mmap.mmap(shared.fileno(), 1 << 20)
server = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(server.getsockname())
far, _ = server.accept()
beats = [0]


def beat():
    while True:
        beats[0] += 1
        time.sleep(0.01)


threading.Thread(target=beat, daemon=True).start()
last = time.monotonic()
print("uid", os.getuid(), "pid", os.getpid(), "home", os.environ["HOME"], flush=True)
for i in range(TURNS):
    ask.write(f"{i}\n")
    assert int(hear.readline()) == 2 * i
    memory[(i * 4096) % len(memory)] = i & 255
    mapped[i % (1 << 20)] = i & 255
    growing.write(f"{i}\n")
    gone.write(f"{i}\n")
    near.sendall(b"%d\n" % i)
    assert far.recv(64) == b"%d\n" % i
    now = time.monotonic()
    assert 0 <= now - last < 60, f"the monotonic clock jumped by {now - last}"
    last = now
    print("turn", i, flush=True)
    if i % 10 == 0:
        print("tenth", i, file=sys.stderr, flush=True)
    time.sleep(0.02)
gone.seek(0)
assert gone.read().split() == [str(i) for i in range(TURNS)]
assert [mapped[i] for i in range(TURNS)] == [i & 255 for i in range(TURNS)]
assert all(memory[(i * 4096) % len(memory)] == i & 255 for i in range(max(0, TURNS - (SIZE >> 12)), TURNS))
assert beats[0] > TURNS
print("end", flush=True)
sys.exit(7)
