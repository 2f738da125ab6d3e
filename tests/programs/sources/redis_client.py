"""redis_client.py PORT ROUNDS: speaks RESP in pipelines of a hundred commands."""

import hashlib
import socket
import sys
import time
from collections.abc import Iterator


def connected(port: int) -> socket.socket:
    for _ in range(300):
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            time.sleep(0.1)
    raise TimeoutError("nobody listens")


def asked(*words: object) -> bytes:
    texts = [str(w).encode() for w in words]
    return b"*%d\r\n" % len(texts) + b"".join(b"$%d\r\n%s\r\n" % (len(t), t) for t in texts)


def commands(r: int) -> Iterator[bytes]:
    for i in range(20):
        yield asked("SET", f"key:{r * 20 + i}", hashlib.sha256(b"%d" % (r * i)).hexdigest() * 4)
        yield asked("INCRBY", f"count:{i}", r * i)
        yield asked("ZADD", "scores", (r * 7919 + i) % 10007, f"name:{(r * 31 + i) % 5003}")
        yield asked("LPUSH", f"list:{i}", r)
        yield asked("GET", f"key:{(r * 17 + i) % (r * 20 + 1)}")


line = connected(int(sys.argv[1]))
answers, heard, h = line.makefile("rb"), 0, hashlib.sha256()
for r in range(int(sys.argv[2])):
    batch = list(commands(r))
    line.sendall(b"".join(batch))
    for _ in batch:
        first = answers.readline()
        h.update(first)
        if first[:1] == b"$" and first != b"$-1\r\n":
            h.update(answers.read(int(first[1:]) + 2))
        heard += 1
    if r % 1000 == 999:
        print(r, heard, h.hexdigest(), flush=True)
line.sendall(asked("ZRANGE", "scores", 0, 20) + asked("SHUTDOWN", "NOSAVE"))
print(hashlib.sha256(answers.read()).hexdigest())
