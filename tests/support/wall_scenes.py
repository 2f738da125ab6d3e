"""Walls around a job, on a minibox: what it tries, and what it may; run by `python -m support.wall_scenes`."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from spotsurfer_agent.host import network as netns
from spotsurfer_agent.host.tools import Tools
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.obstore import open_store
from support.engine_kit import BASE, JOB, STORE, CriuEngine, engine, newest, output, request, until

PROGRAM = Path(__file__).with_name("breakout.py")
OUTSIDE = """
import json, socket, subprocess, sys
def reaches(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(1.0)
        try: s.connect(address)
        except OSError: return False
        return True
machine = sys.argv[1]
for words in (f"-6 route add default via {machine} dev eth0", "route replace 169.254.0.0/16 via 10.201.0.1"):
    subprocess.run(["ip", *words.split()], check=False, stderr=subprocess.DEVNULL)
scope = socket.if_nametoindex("eth0")
print(json.dumps({
    "machine by IPv4": reaches(socket.AF_INET, ("10.201.0.1", 80)),
    "metadata by IPv4": reaches(socket.AF_INET, ("169.254.169.254", 80)),
    "machine by IPv6": reaches(socket.AF_INET6, (machine, 80, 0, scope)),
    "metadata by IPv6": reaches(socket.AF_INET6, ("fd00:ec2::254", 80)),
}))
"""


def machine() -> list[socket.socket]:
    """What a job must not reach: the metadata service's addresses, a daemon, a file, the agent's state."""
    for words in ("address add 169.254.169.254/32 dev lo", "-6 address add fd00:ec2::254/128 dev lo nodad"):
        subprocess.run(["ip", *words.split()], check=True)
    metadata = socket.create_server(("::", 80), family=socket.AF_INET6, dualstack_ipv6=True)
    daemon = socket.socket(socket.AF_UNIX)
    daemon.bind("/run/daemon.sock")
    daemon.listen()
    Path("/run/daemon.sock").chmod(0o666)
    for path in (Path("/run/machine-secret"), BASE / "agent-state.json"):
        path.write_text("secret of the machine")
        path.chmod(0o644)
    return [metadata, daemon]


def link_local() -> str:
    """The machine's end of the job's link; the addresses of both ends are ready then."""

    def found() -> list[str]:
        said = subprocess.run(["ip", "-6", "-o", "address", "show", "dev", netns.PEER], capture_output=True, text=True)
        return [x.split()[3].partition("/")[0] for x in said.stdout.splitlines() if "fe80" in x and "tentative" not in x]

    until(found)
    time.sleep(1.5)
    return found()[0]


def begun(user: str) -> CriuEngine:
    e = engine()
    assert e.preflight() == []
    work = Path(e.scratch(), "work")
    shutil.copy(PROGRAM, work)
    e.start(Spec(JOB, ["/usr/bin/python3", "breakout.py", str(os.getpid())], user=user))
    cat = work / "setuid-cat"
    shutil.copy("/bin/cat", cat)
    os.chown(cat, 0, 0)
    cat.chmod(0o4755)
    (work / "link-local").write_text(link_local())
    (work / "link-local").chmod(0o644)
    return e


def told(e: CriuEngine, turn: int, before: int = 0) -> dict[str, Any]:
    """What the job says in this turn; `before`: lines of earlier machines."""
    work = Path(e.scratch(), "work")
    node = work / "null-on-disk"
    os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    node.chmod(0o666)
    (work / f"go-{turn}").touch()
    until(lambda: output(e).count(b"\n") > turn - before, 60.0)
    node.unlink()  # a save carries no devices
    return dict(json.loads(output(e).splitlines()[turn - before]))


def breaks_out(user: str) -> None:
    """A job of this user tries everything, and once more where it was restored."""
    kept = machine()
    e = begun(user)
    first = told(e, 0)
    e.run_inside(["sh", "-c", "cat /proc/self/status > of-hook"], 10.0)
    hook = Path(e.scratch(), "work", "of-hook").read_text()
    e.save(request(1, final=False))
    e.save(request(2, final=True))
    e.kill()
    e.restore(newest(open_store(STORE)), Spec(JOB, [], user=user))
    then = told(e, 1, before=1)
    e.kill()
    print(json.dumps({"first": first, "then": then, "hook": hook}))
    for s in kept:
        s.close()


def network() -> None:
    """What somebody with all rights over the job's network reaches from there; then the same in a rehearsal."""
    kept = machine()
    e = begun("unprivileged")
    address = Path(e.scratch(), "work", "link-local").read_text()
    argv = ["nsenter", "--target", str(e.pids()[0]), "--net", sys.executable, "-c", OUTSIDE, address]
    usual = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    tools = Tools.find(Path(os.environ["SPOTSURFER_PREFIX"]))
    netns.wall_off(tools)  # it has to hold without the other rules, which come and go with the link
    for family in ("ip", "ip6"):
        subprocess.run([*tools.nft, "delete", "table", family, netns.TABLE], capture_output=True, check=False)
    walled = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
    print(json.dumps({"usual": usual, "walled": walled}))
    e.kill()
    for s in kept:
        s.close()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
