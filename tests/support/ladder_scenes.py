"""Scenes on a minibox of the ladder's engines: programs that save themselves, hooks, jobs without checkpoints."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from spotsurfer_agent.engines.choice import JobEngine
from spotsurfer_agent.engines.job_host import Origin
from spotsurfer_agent.host.tools import Tools
from spotsurfer_agent.store.credentials import StoreAccess
from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.linux import procfs, syscalls
from spotsurfer_wire.messages import SelfSave, Spec
from spotsurfer_wire.store.obstore import open_store
from support.engine_kit import BASE, JOB, W, newest, output, refused, request, until

PROGRAM = """
import os, signal, sys, time
n = int(open("state").read()) if os.path.exists("state") else 0
def save(*_):
    open("state.new", "w").write(str(n)); os.rename("state.new", "state"); print("saved", n, flush=True)
    if "exit" in sys.argv: os._exit(85)
signal.signal(signal.SIGUSR1, save)
print("from", n, flush=True)
while True:
    n += 1
    if os.path.exists("please"):
        os.unlink("please"); save()
    time.sleep(0.01)
"""
WAYS = {
    "signal": SelfSave(signal="USR1", done_file="state", deadline_seconds=10),
    "output": SelfSave(signal="USR1", done_output=r"^saved \d+", deadline_seconds=10),
    "file": SelfSave(file="please", done_file="state", deadline_seconds=10),
    "command": SelfSave(command=["sh", "-c", "kill -USR1 2; sleep 0.3; test -s state"], deadline_seconds=10),
    "exit": SelfSave(signal="USR1", done_exit=85, deadline_seconds=10),
}


def ladder(spec: Spec) -> JobEngine:
    store = open_store("file:///run/store")
    store.delete([object_keys.spec_key(JOB)])
    store.create(object_keys.spec_key(JOB), json_codec.encode(spec))
    tools = Tools.find(Path(os.environ["SPOTSURFER_PREFIX"]))

    return JobEngine(BASE, JOB, store, tools, Origin(StoreAccess("file:///run/store")))


def app(way: str) -> None:
    """Saved live, then for the last time, and continued from its own state; with every way to tell it and to know."""
    words = ["/usr/bin/python3", "-u", "-c", PROGRAM, *(["exit"] if way == "exit" else [])]
    spec = Spec(JOB, words, engine="app", app=WAYS[way], user="nobody" if way in ("signal", "command") else None)
    e = ladder(spec)
    assert e.preflight() == []
    e.start(spec)
    until(lambda: b"from 0" in output(e))
    time.sleep(0.3)
    facts = e.save(request(1, final=False))
    assert facts.kind == "live"
    assert facts.frozen_seconds < 2
    goes_on(e, spec)
    until(lambda: e.status().state is W.RUNNING)
    first = saved(e)
    time.sleep(0.2)
    if way == "exit":
        until(lambda: b"from %d" % first in output(e))
    e.save(request(2, final=True))
    assert e.status().state is W.ABSENT
    image = newest(open_store("file:///run/store"))
    assert (image.engine, image.kind, image.image) == ("app", "final", [])
    e.kill()
    e.restore(image, spec)
    until(lambda: b"from " in output(e))
    assert int(output(e).split()[1]) > first > 0
    e.kill()


def goes_on(e: JobEngine, spec: Spec) -> None:
    """As the agent sees to it after a save."""
    if e.status().saved_itself:
        e.go_on(spec)


def saved(e: JobEngine) -> int:
    return int(output(e).rpartition(b"saved ")[2].split()[0])


def deaf() -> None:
    """A program that does not save itself in time runs on; one that ends instead has ended."""
    spec = Spec(JOB, ["sleep", "1000"], engine="app", app=SelfSave(file="x", done_file="never", deadline_seconds=0.5))
    e = ladder(spec)
    e.start(spec)
    told = refused("save", lambda: e.save(request(1, final=True)))
    assert "within 0.5 s" in told
    assert e.status().state is W.RUNNING
    e.kill()
    told = SelfSave(signal="TERM", done_exit=0, deadline_seconds=1)
    spec = Spec(JOB, ["sleep", "1000"], engine="app", app=told)
    e = ladder(spec)
    e.start(spec)
    assert "would die of SIGTERM" in refused("save", lambda: e.save(request(2, final=True)))
    assert e.status().state is W.RUNNING
    e.kill()
    spec = Spec(JOB, ["sh", "-c", "trap 'exit 7' TERM; while :; do sleep 0.1; done"], engine="app", app=told)
    e = ladder(spec)
    e.start(spec)
    assert "ended by itself" in refused("save", lambda: e.save(request(3, final=True)))
    assert e.status().exit_code == 7
    e.kill()


def rungs() -> None:
    """`auto` takes CRIU while it can, tells what stands against it, and goes to the next rung; then back."""
    script = PROGRAM + "\n"
    held = "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP)\n"
    for own in (None, WAYS["signal"]):
        spec = Spec(JOB, ["/usr/bin/python3", "-u", "-c", held + script], app=own)
        e = ladder(spec)
        e.start(spec)
        until(lambda e=e: b"from" in output(e))
        e.look()
        rung = e.protection()
        assert rung.rung == ("app" if own else "none"), rung
        assert "socket of family MPTCP" in rung.reason
        assert "process 2 (/usr/bin/python3" in rung.reason
        if own:
            e.save(request(1, final=False))
            assert newest(open_store("file:///run/store")).engine == "app"
        else:
            assert "MPTCP" in refused("save", lambda e=e: e.save(request(1, final=False)))
        assert e.status().state is W.RUNNING
        e.kill()
    spec = Spec(JOB, ["sleep", "1000"])
    e = ladder(spec)
    e.start(spec)
    e.look()
    assert (e.protection().rung, e.protection().reason) == ("criu", "")
    e.kill()
    spec = Spec(JOB, ["sleep", "1000"], engine="none")
    e = ladder(spec)
    e.start(spec)
    assert "starts over" in refused("save", lambda: e.save(request(9, final=True)))
    e.kill()


TALK = "import socket, time; s = socket.create_connection(('10.201.0.1', 7000), 5); print('in', flush=True); time.sleep(1000)"


def connections() -> None:
    """One to the outside: `close` saves it, `keep` names it and saves nothing, `forbid` counts the job as unprotected."""
    outside = socket.create_server(("0.0.0.0", 7000))
    for number, (mode, told) in enumerate((("close", ""), ("keep", "allows no save now"), ("forbid", "rules out")), 1):
        spec = Spec(JOB, ["/usr/bin/python3", "-c", TALK], tcp=mode)
        e = ladder(spec)
        e.start(spec)
        until(lambda e=e: output(e) == b"in\n")
        e.look()
        assert e.protection().rung == ("none" if mode == "forbid" else "criu")
        if told:
            sentence = refused("save", lambda e=e, n=number: e.save(request(n, final=False)))
            assert told in sentence
            assert "10.201.0.1 port 7000" in sentence
        else:
            e.save(request(number, final=False))
        assert e.status().state is W.RUNNING
        e.kill()
    outside.close()


PING = """
import os, socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
s.settimeout(20)
print("ready", flush=True)
while not os.path.exists("go"): time.sleep(0.01)
s.sendto(bytes([8, 0, 0, 0, 0, 0, 0, 1]) + b"hello", ("127.0.0.1", 0))
print(s.recv(100)[8:], flush=True)
"""


def named(e: JobEngine, number: int, word: str) -> None:
    assert word in refused("save", lambda: e.save(request(number, final=False)))
    assert (e.protection().rung, word in e.protection().reason) == ("none", True)


def unmounted(root: int, point: str) -> None:
    """By a system call: umount(8) looks into a /proc that it is not in."""
    child = os.fork()
    if not child:
        with open(f"/proc/{root}/ns/mnt") as there:  # noqa: PTH123
            syscalls.setns(there.fileno(), syscalls.CLONE_NEWNS)
        syscalls.umount(point)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def made_inside() -> None:
    """Mounts and links that the job made, as jobs of earlier agents could: named, and saved once they are gone."""
    spec = Spec(JOB, ["/usr/bin/python3", "-c", PING], user="nobody")
    e = ladder(spec)
    assert e.preflight() == []
    e.start(spec)
    until(lambda: output(e) == b"ready\n")
    root = next(p for p in e.pids() if procfs.number_inside(p) == 1)
    inside = ["nsenter", "--target", str(root), "--mount", "--net"]
    overlay = f"overlay -o lowerdir={BASE}/work:{BASE}/tmp mine {BASE}/home"
    for number, words in enumerate((f"tmpfs mine {BASE}/work", overlay), 1):
        kind, point = words.split()[0], words.split()[-1]
        subprocess.run([*inside, "mount", "-t", *words.split()], check=True)
        named(e, number, f"{kind} mounted on {point}")
        unmounted(root, point)
    subprocess.run([*inside, "ip", "link", "add", "bridge0", "type", "bridge"], check=True)
    named(e, 3, "network link bridge0")
    subprocess.run([*inside, "ip", "link", "delete", "bridge0"], check=True)
    e.save(request(9, final=True))
    e.restore(newest(e.store), spec)
    Path(e.scratch(), "work/go").touch()
    until(lambda: e.status().state is W.EXITED, 30.0)
    assert output(e).endswith(b"b'hello'\n"), output(e)
    e.kill()


def hooks() -> None:
    """They run inside, as the job's user, in its folder; one that fails stops a save, unless the machine is being taken."""
    spec = Spec(
        JOB, ["sh", "-c", "while :; do sleep 0.1; done"], environment={"WHO": "me"},
        before_freeze=["sh", "-c",
            "sleep 0.5; echo $WHO $(id -un) $(pwd) $$ >> before; test ! -e bad || { echo >&2 no; exit 3; }"],
        after_restore=["sh", "-c", "touch after"],
    )  # fmt: skip
    e = ladder(spec)
    e.start(spec)
    time.sleep(0.3)
    facts = e.save(request(1, final=False))
    assert 0.5 < facts.start_seconds < 0.5 + facts.durable_seconds + 5, facts
    work = Path(e.scratch(), "work")
    assert (work / "before").read_text().startswith(f"me root {BASE}/work ")
    (work / "bad").touch()
    told = refused("save", lambda: e.save(request(2, final=True)))
    assert "exit code 3: no" in told
    assert e.status().state is W.RUNNING
    import dataclasses

    e.save(dataclasses.replace(request(3, final=True), urgent=True))
    assert "exit code 3: no" in e.note


def thaw() -> None:  # noqa: PLR0915 - one story
    """After a restore, a failed final save and a return the job stands still until its user's command succeeds."""
    spec = Spec(
        JOB, ["sh", "-c", "i=0; while :; do i=$((i+1)); echo $i > n.new; mv n.new n; sleep 0.02; done"],
        before_freeze=["sh", "-c", "echo $SPOTSURFER_WHY >> before; ! test -e bad"],
        after_restore=["sh", "-c", "echo $SPOTSURFER_WHY $SPOTSURFER_CLOCK_JUMP_SECONDS >> after"],
        before_thaw=["sh", "-c",
            "echo $SPOTSURFER_WHY $SPOTSURFER_CLOCK_JUMP_SECONDS $(id -un) $(pwd) >> thaw; cat n >> seen; test -e licence"],
    )  # fmt: skip
    import dataclasses

    e = ladder(spec)
    work = Path(e.scratch(), "work")

    def stands() -> bool:
        before = (work / "n").read_text()
        time.sleep(0.4)
        return (work / "n").read_text() == before

    def thaws(why: str, jump: float) -> None:
        assert e.stands_still and stands(), "it stands still"
        (work / "licence").unlink(missing_ok=True)
        assert "before_thaw: `sh -c" in e.thaw(why, jump), "there is no licence"
        assert e.stands_still and stands(), "and goes on standing"
        (work / "licence").touch()
        assert e.thaw(why, jump) == ""
        assert not e.stands_still and not stands()
        told = (work / "thaw").read_text().splitlines()[-2:]
        assert all(x == f"{why} {jump:.3f} root {BASE}/work" for x in told), told
        first, second = (work / "seen").read_text().split()[-2:]
        assert first == second, "no instruction of it ran between the two"

    e.start(spec)
    until((work / "n").exists, 10.0)
    e.save(request(1, final=False))
    assert not e.stands_still and not stands(), "it went on at once"
    e.save(dataclasses.replace(request(2, final=True), why="suspend"))
    assert (work / "before").read_text().split() == ["save", "suspend"]
    at = int((work / "n").read_text())
    e.restore(newest(e.store), spec)
    assert int((work / "n").read_text()) == at, "not one instruction ran"
    assert not (work / "after").exists(), "its turn comes when the job runs"
    thaws("restore", 3600.5)
    assert (work / "after").read_text() == "restore 3600.500\n"
    (work / "bad").touch()
    refused("save", lambda: e.save(dataclasses.replace(request(3, final=True), why="move")))
    thaws("failed", 0.0)
    (work / "bad").unlink()
    e.save(dataclasses.replace(request(4, final=True), keep=True))
    at = int((work / "n").read_text())
    e.settle(False)
    until(lambda: e.status().pending_final is None, 10.0)
    assert int((work / "n").read_text()) == at
    thaws("return", -5.0)
    e.save(request(5, final=False))
    assert not stands()
    e.kill()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
