"""Scenes on a minibox: what a process sees of itself stays as it was. Run by `python -m support.self_scenes`."""

from __future__ import annotations

import socket
import sys

from spotsurfer_agent.protocol import Spec
from spotsurfer_agent.store import open_store
from support.engine_kit import JOB, engine, newest, output, request, until

ASKS = """
import os, socket, time
while True:
    name = socket.gethostname()
    print(name, socket.gethostbyname(name), os.uname().nodename, open("/proc/sys/kernel/domainname").read().strip(), flush=True)
    time.sleep(0.05)
"""


def named(machine: str) -> None:
    """A job goes by the same name on two machines, finds its own address by it, and so does what is run beside it."""
    socket.sethostname(machine)
    store = open_store("file:///run/store")
    e = engine(store)
    if machine == "first":
        e.start(Spec(JOB, ["/usr/bin/python3", "-c", ASKS]))
    else:
        e.restore(newest(store), Spec(JOB, []))
    until(lambda: output(e).count(b"\n") > 2)
    e.run_inside(["sh", "-c", "[ $(uname -n) = j1 ]"], 20.0)
    e.save(request(1 if machine == "first" else 2, final=True))
    assert set(output(e).decode().splitlines()[1:-1]) == {"j1 10.201.0.2 j1 (none)"}, output(e)
    assert newest(store).facts["host name"] == "j1"
    assert socket.gethostname() == machine
    e.kill()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
