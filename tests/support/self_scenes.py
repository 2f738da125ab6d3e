"""Scenes on a minibox: what a process sees of itself stays as it was. Run by `python -m support.self_scenes`."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from pathlib import Path

from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.obstore import open_store
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


def waits() -> None:
    """Threads wait through two live saves and a move; no call comes back before its time, and each with what it waited for."""
    store = open_store("file:///run/store")
    e = engine(store)
    shutil.copy(Path(__file__).with_name("waiting_job.py"), Path(e.scratch(), "work"))
    e.start(Spec(JOB, ["/usr/bin/python3", "waiting_job.py"]))
    until(lambda: b"all wait" in output(e))
    time.sleep(0.2)  # they make their calls
    for number in (1, 2):
        e.save(request(number, final=False))
    e.save(request(3, final=True))
    said = output(e)
    e.kill()
    e.restore(newest(store), Spec(JOB, []))
    Path(e.scratch(), "work/end").touch()
    until(lambda: b"over" in output(e), 60.0)
    came = dict(line.split() for line in (said + output(e)).decode().splitlines() if line.count(" ") == 1)
    e.kill()
    came.pop("all")
    assert len(came) == 17, came
    assert {name for name in came if came[name] == "EINTR"} == set(), came
    assert {came[x] for x in ("poll", "epoll_wait", "epoll_pwait")} == {"1"}, came
    assert (came["semtimedop"], came["sigtimedwait"], came["msgrcv"]) == ("0", "10", "8"), came
    asleep = {came[x] for x in ("nanosleep", "nanosleep-rest", "clock_nanosleep", "io_getevents")}
    assert asleep == {"0"}, came


def attributes() -> None:
    """Processors, I/O priority, timer slack, core filter of two threads come back, processors as far as they are here."""
    store = open_store("file:///run/store")
    e = engine(store)
    shutil.copy(Path(__file__).with_name("odd_job.py"), Path(e.scratch(), "work"))
    here = sorted(os.sched_getaffinity(0))
    e.start(Spec(JOB, ["/usr/bin/python3", "odd_job.py", str(here[0]), str(here[-1])]))
    wanted = {f"first [{here[0]}] 3 90000 00000011", f"second [{here[-1]}] 6 70000 00000011"}
    until(lambda: wanted <= set(output(e).decode().splitlines()))
    e.save(request(1, final=True))
    image = newest(store)
    for mine in (here, here[-1:]):
        e.kill()
        os.sched_setaffinity(0, mine)
        e.restore(image, Spec(JOB, []))
        until(lambda: output(e).count(b"\n") > 20)
        said = set(output(e).decode().splitlines()[1:-1])
        assert said == (wanted if mine is here else {f"{x.split()[0]} {mine} {x.split(maxsplit=2)[2]}" for x in wanted}), said
    os.sched_setaffinity(0, here)
    e.kill()


HIGHEST = """
import os, resource, time
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
os.dup2(0, hard - 1)
while True:
    print(hard, os.fstat(hard - 1) == os.fstat(0), resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard), flush=True)
    time.sleep(0.05)
"""


def highest() -> None:
    """A program with a descriptor at the top of its limit, as Valgrind has some, goes on after a move."""
    store = open_store("file:///run/store")
    e = engine(store)
    e.start(Spec(JOB, ["/usr/bin/python3", "-c", HIGHEST]))
    until(lambda: output(e).count(b"\n") > 2)
    e.save(request(1, final=True))
    e.kill()
    e.restore(newest(store), Spec(JOB, []))
    until(lambda: output(e).count(b"\n") > 6)
    e.kill()
    assert len(set(output(e).decode().splitlines()[:-1])) == 1, output(e)


BEARS = """
import os, time
while True:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    print(child, flush=True)
    time.sleep(0.02)
"""


def numbers() -> None:
    """New processes get the numbers that they would have got without two live saves and two moves."""
    store = open_store("file:///run/store")
    e = engine(store)
    e.start(Spec(JOB, ["/usr/bin/python3", "-c", BEARS]))
    said = b""
    for number, final in enumerate((False, True, False, True, False), 1):
        lines = output(e).count(b"\n")
        until(lambda lines=lines: output(e).count(b"\n") > lines + 20)
        e.save(request(number, final=final))
        if final:
            said += output(e)
            e.kill()
            e.restore(newest(store), Spec(JOB, []))
    said += output(e)
    e.kill()
    told = [int(x) for x in said.decode().splitlines()[:-1]]
    assert len(told) > 80
    assert told == list(range(told[0], told[0] + len(told))), told


def datagrams() -> None:
    """What waits in sockets of the job is received after a live save and a move, in order and from where it came."""
    store = open_store("file:///run/store")
    e = engine(store)
    shutil.copy(Path(__file__).with_name("datagrams_job.py"), Path(e.scratch(), "work"))
    e.start(Spec(JOB, ["/usr/bin/python3", "datagrams_job.py"]))
    until(lambda: b"all wait" in output(e))
    e.save(request(1, final=False))
    e.save(request(2, final=True))
    e.kill()
    e.restore(newest(store), Spec(JOB, []))
    Path(e.scratch(), "work/end").touch()
    until(lambda: b"over" in output(e), 90.0)
    told = output(e).decode().splitlines()[:-1]
    wanted = [f"{who} {i} {port}" for i in range(3) for who, port in (("living", 7003), ("gone", 7004))]
    wanted += [f"six {i} 7005" for i in range(3)] + [f"unix {i} -" for i in range(3)]
    assert told == wanted, told
    e.kill()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
