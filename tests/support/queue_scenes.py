"""Scenes on a minibox of connections that nobody has accepted yet. Run by `python -m support.queue_scenes`."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from spotsurfer_agent.host import network
from spotsurfer_wire.messages import Spec
from support.engine_kit import JOB, CriuEngine, W, engine, newest, output, refused, request, until
from support.ladder_scenes import ladder

# Both ends of one connection over TCP and of one over a Unix socket, neither of them accepted. At each word in its folder it
# says what became of them, and makes new ones.
PROGRAM = """
import os, socket, time
tcp, unix = socket.create_server(("127.0.0.1", 7001)), socket.socket(socket.AF_UNIX)
unix.bind("s"); unix.listen()
def connected():
    a, b = socket.create_connection(tcp.getsockname()), socket.socket(socket.AF_UNIX)
    a.sendall(b"hello"); b.connect("s"); a.settimeout(20); b.settimeout(20); tcp.settimeout(20); unix.settimeout(20)
    return a, b
def accepted():
    try:
        a = tcp.accept()[0].recv(9) if "live" in word else client.recv(9)
    except OSError as e:
        a = type(e).__name__
    served = unix.accept()[0]
    other.sendall(b"there")
    return a, served.recv(9)
client, other = connected()
print("ready", flush=True)
for word in ("live", "final"):
    while not os.path.exists(word): time.sleep(0.01)
    print(word, *accepted(), flush=True)
    client, other = connected()
    print("again after", word, flush=True)
"""
SERVER = "import socket, time; s = socket.create_server(('0.0.0.0', 7000)); print('ready', flush=True); time.sleep(1000)"


def told(e: CriuEngine, word: str) -> str:
    until(lambda: word in output(e).decode().split("\n"), 30.0)
    return output(e).decode()


def within() -> None:
    """After a live save nothing has happened; after a move the one over TCP is aborted, and its program goes on."""
    e = engine()
    e.start(Spec(JOB, ["/usr/bin/python3", "-u", "-c", PROGRAM]))
    told(e, "ready")
    e.save(request(1, final=False))
    Path(e.scratch(), "work/live").touch()
    assert "live b'hello' b'there'" in told(e, "again after live")
    e.save(request(2, final=True))
    e.kill()
    e.restore(newest(e.store), Spec(JOB, []))
    Path(e.scratch(), "work/final").touch()
    until(lambda: e.status().state is W.EXITED, 30.0)
    assert "final ConnectionAbortedError b'there'" in output(e).decode(), output(e)
    assert e.status().exit_code == 0
    e.kill()


def from_outside() -> None:
    """`close` saves, and the server serves others after a move; `keep` and `forbid` name who waits."""
    for number, (mode, word) in enumerate((("forbid", "rules out"), ("keep", "allows no save now"), ("close", "")), 1):
        spec = Spec(JOB, ["/usr/bin/python3", "-u", "-c", SERVER], tcp=mode)
        e = ladder(spec)
        e.start(spec)
        until(lambda e=e: output(e) == b"ready\n")
        with socket.create_connection((network.INSIDE, 7000)) as c:
            here = f"{network.OUTSIDE} port {c.getsockname()[1]}"
            e.look()
            assert e.protection().rung == ("none" if mode == "forbid" else "criu"), e.protection()
            if word:
                sentence = refused("save", lambda e=e, n=number: e.save(request(n, final=False)))
                assert word in sentence
                assert f"has a connection from {here}" in sentence
            else:
                e.save(request(number, final=True))
                e.restore(newest(e.store), spec)
                with socket.create_connection((network.INSIDE, 7000)):
                    assert e.status().state is W.RUNNING
        e.kill()


if __name__ == "__main__":
    subprocess.run(["ip", "link", "set", "lo", "up"], check=False)
    globals()[sys.argv[1]](*sys.argv[2:])
