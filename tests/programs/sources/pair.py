"""pair.py ROUNDS: two processes talk over TCP on the loopback, with data in flight all the time."""

import hashlib
import os
import socket
import sys
import threading

rounds, size = int(sys.argv[1]), 1 << 18
server = socket.create_server(("127.0.0.1", 0))
port = server.getsockname()[1]
if os.fork() == 0:
    server.close()
    with socket.create_connection(("127.0.0.1", port)) as line:
        while data := line.recv(1 << 16):
            line.sendall(data.translate(bytes(range(255, -1, -1))))
    os._exit(0)
line, _ = server.accept()
sent, got = hashlib.sha256(), hashlib.sha256()


def send() -> None:
    block = b"begin"
    for _ in range(rounds):
        block = hashlib.sha256(block).digest()
        sent.update(block * (size // 32))
        line.sendall(block * (size // 32))
    line.shutdown(socket.SHUT_WR)


writer = threading.Thread(target=send)
writer.start()
count = 0
back = bytes(range(255, -1, -1))
while data := line.recv(1 << 16):
    got.update(data.translate(back))
    before, count = count, count + len(data)
    if before // (100 * size) != count // (100 * size):
        print(count // (100 * size), flush=True)
writer.join()
os.wait()
print(count, got.hexdigest(), got.digest() == sent.digest())
