"""A job with datagrams that wait in sockets of its own: of a sender that lives, of one that is gone, of IPv6, of Unix."""

from __future__ import annotations

import socket
import time
from pathlib import Path

taker, six = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
taker.bind(("127.0.0.1", 7001))
six.bind(("::", 7002))
sender, gone = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.bind(("127.0.0.1", 7003))
gone.bind(("127.0.0.1", 7004))
far = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
far.bind(("::1", 7005))
near, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
for i in range(3):
    sender.sendto(b"living %d" % i, ("127.0.0.1", 7001))
    gone.sendto(b"gone %d" % i, ("127.0.0.1", 7001))
    far.sendto(b"six %d" % i, ("::1", 7002))
    near.send(b"unix %d" % i)
gone.close()
print("all wait", flush=True)
while not Path("end").exists():
    time.sleep(0.05)
for s, count in ((taker, 6), (six, 3), (other, 3)):
    s.settimeout(5.0)
    for _ in range(count):
        try:
            data, source = s.recvfrom(100)
            print(data.decode(), source[1] if source else "-", flush=True)
        except TimeoutError:
            print("nothing", flush=True)
print("over", flush=True)
time.sleep(1000)
