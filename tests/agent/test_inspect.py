"""What can't be saved is found in real processes, and CRIU says the same of them."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from spotsurfer_agent.engines.choice import JobEngine
from spotsurfer_agent.host.shim_protocol import STARTED, write_durably
from spotsurfer_agent.save import blockers, process_inspection
from spotsurfer_agent.save.blockers import Job
from spotsurfer_wire.messages import Spec
from support.held_things import THINGS, Thing, in_a_child, start
from support.minibox import minibox

pytestmark = pytest.mark.real


def looked_at(code: str, **job: object) -> list[str]:
    p = start(code)
    try:
        return blockers.findings(Job(tree(p.pid), "/var/lib/spotsurfer", root=p.pid, **job))  # type: ignore[arg-type]
    finally:
        os.killpg(p.pid, signal.SIGKILL)
        p.communicate()


def tree(root: int) -> list[int]:
    children = Path(f"/proc/{root}/task/{root}/children").read_text().split()
    return [root, *(x for c in children for x in tree(int(c)))]


def test_every_thing_is_named_and_criu_agrees(tmp_path):
    """On a small machine: what we say of each program, and whether CRIU by itself would dump it."""
    with minibox(tmp_path / "box", tmp_path / "store", module="support.held_scenes") as box:
        found = json.loads(box.run("all_things", timeout_seconds=240).splitlines()[-1])
    assert {t.name for t in THINGS} - set(found) <= {"vsock", "kernel crypto"}, "only what a kernel may be built without"
    assert [wrong for t in THINGS if t.name in found and (wrong := mismatch(t, *found[t.name]))] == []


def mismatch(thing: Thing, told: list[str], dumped: bool) -> str:
    if bool(told) != bool(thing.told) or thing.told not in " ".join(told):
        return f"{thing.name}: told {told}"
    if (thing.criu or not thing.told) and dumped == thing.criu:
        return f"{thing.name}: CRIU {'dumps' if dumped else 'refuses'} it"
    return ""


def test_the_outside_end_of_a_unix_socket_is_named(tmp_path):
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        p = start(f"s=socket.socket(socket.AF_UNIX); s.connect({path!r})")
        held, _ = server.accept()
        try:
            told = blockers.findings(Job([p.pid], "/var/lib/spotsurfer"))
        finally:
            p.kill()
            p.communicate()
            held.close()
    assert len(told) == 1
    assert f"Unix socket {path} (descriptor 3)" in told[0]


def test_only_what_a_second_look_sees_stands_against_a_save(monkeypatch):
    """A worker connects to its parent between the looks at the two: that end seemed to be outside of the job."""
    looks = [["process 1 talks to a program outside", "process 1 maps a device"], ["process 1 maps a device"]]
    monkeypatch.setattr(blockers, "findings", lambda _: looks.pop(0))
    nothing = {"pids": list, "mounts": list, "scratch": str, "base": Path("/x"), "_found": None, "_written": lambda _: ()}
    engine: Any = SimpleNamespace(cuda=SimpleNamespace(gpu_processes=lambda _: ([], [])), **nothing)
    assert JobEngine._find(engine, Spec("job", ["true"])) == ["process 1 maps a device"]
    assert looks == []
    looks += [["process 1 maps a device"], ["never looked at"]]
    assert JobEngine._find(engine, Spec("job", ["true"])) == ["process 1 maps a device"]  # the look before saw it, too
    assert looks == [["never looked at"]]


@pytest.mark.parametrize(("mode", "count"), [("close", 0), ("keep", 0), ("forbid", 1)])
def test_outside_connections_count_where_they_are_forbidden(mode, count, monkeypatch):
    monkeypatch.setattr("spotsurfer_agent.save.process_inspection._inside", lambda address: False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        p = start(f"s=socket.create_connection(('127.0.0.1', {port}))")
        try:
            job = Job([p.pid], "/x", mode)
            told, open_now = blockers.findings(job), blockers.connections(job)
        finally:
            p.kill()
            p.communicate()
    assert len(told) == count
    assert len(open_now) == 1
    assert f"127.0.0.1 port {port}" in open_now[0]


@pytest.mark.parametrize("may", [True, False])
def test_a_second_user_is_named_where_this_machine_can_not_save_two(may, monkeypatch):
    monkeypatch.setattr("spotsurfer_agent.host.launch.has_capability", lambda _: may)
    told = looked_at(in_a_child("os.setgid(1); os.setuid(1)"))
    assert bool(told) != may
    assert may or "runs as user 1 in a job of user 0, and this machine's root may not save both" in told[0]


def test_what_vfork_holds_up_for_a_moment_is_nothing(monkeypatch):
    """A program that starts others all the while must not be unprotected by chance."""
    answers = [*[process_inspection.COMMON[1]] * 3, ""]
    monkeypatch.setattr(process_inspection, "common", lambda *_: answers.pop(0))
    monkeypatch.setattr(process_inspection.procfs, "status", lambda _: {"State": "D (disk sleep)"})
    assert not process_inspection.waits_for_exec(1, 2)
    monkeypatch.setattr(process_inspection, "common", lambda *_: process_inspection.COMMON[1])
    assert process_inspection.waits_for_exec(1, 2)


def test_many_findings_are_one_sentence():
    assert blockers.sentence([]) == ""
    assert blockers.sentence(["a", "b", "c"]) == "the job can't be saved: a (and 2 more such things)"


def test_a_process_that_is_gone_is_no_finding():
    p = start("")
    p.kill()
    p.communicate()
    assert blockers.findings(Job([p.pid], "/x")) == []


@pytest.mark.parametrize("ours", [False, True])
def test_the_criu_of_an_agent_before_us_is_no_debugger(ours, tmp_path):
    """Else an agent that starts anew in the middle of a save would let a job go that stands still for want of memory."""
    p = start(next(t.code for t in THINGS if t.name == "traced"))
    try:
        (tmp_path / "job").mkdir()
        write_durably(tmp_path / "job" / STARTED, {"pid": p.pid if ours else os.getpid()})  # the tracer is a child of p
        told = blockers.findings(Job([p.pid], str(tmp_path)))
    finally:
        os.killpg(p.pid, signal.SIGKILL)
        p.communicate()
    assert any("is traced by process" in sentence for sentence in told) != ours
