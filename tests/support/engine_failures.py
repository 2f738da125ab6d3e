"""Scenes in which something dies or fails; see `engine_scenes`."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock

from spotsurfer_agent.host import cgroup, shim_protocol, tools
from spotsurfer_agent.host.cgroup import JobCgroup
from spotsurfer_wire import object_keys
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.obstore import open_store
from spotsurfer_wire.store.port import StoreError
from support.engine_kit import (
    BASE,
    JOB,
    STORE,
    NotRefused,
    W,
    begin,
    engine,
    job,
    newest,
    output,
    refused,
    request,
    runs,
    shim_gone,
    stands_still,
    turns_pass,
    until,
)

STRIKES = 5  # how often something may come too late
STARTED = BASE / "job" / shim_protocol.STARTED


class Failing:
    """A store that fails from a certain write on."""

    def __init__(self, after: int) -> None:
        self._inner, self.left = open_store("file:///run/store"), after

    def create(self, key: str, data: bytes) -> bool:
        self._count()
        return self._inner.create(key, data)

    def create_later(self, key: str, data: bytes) -> bool:
        self._count()
        return self._inner.create_later(key, data)

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise StoreError("no such luck")

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def failing_store() -> None:
    """P3: whatever write fails, and when the commit says no, the job runs on; afterwards a save works."""
    store = Failing(0)
    e = engine(store)  # type: ignore[arg-type]
    begin(e, job())
    tries = [(after, final) for after in (0, 1, 3, 10) for final in (False, True)]
    for number, (after, final) in enumerate(tries, 1):
        store.left = after
        asked = request(number, final=final)
        assert "no such luck" in refused("save", partial(e.save, asked))
        runs(e)
    store.left = 10**6
    for number, final in ((90, False), (91, True)):
        refused("save", partial(e.save, request(number, final=final, commit=lambda _: False)))
        runs(e)
    e.save(request(92, final=True))
    assert e.status().state is W.ABSENT
    assert list((BASE / "job/kept").iterdir()) == []
    e.kill()


def unclear_commit() -> None:
    """When the commit's outcome is unknown the job stays frozen until it is settled."""
    e = engine()
    begin(e, job())

    def lost(_: Manifest) -> bool:
        raise StoreError("the answer was lost")

    for number, committed in ((1, False), (2, True)):
        try:
            e.save(request(number, final=True, commit=lost))
        except StoreError:
            assert e.status().pending_final == object_keys.checkpoint_id(1, number)
        stands_still(e)
        e.settle(committed)
        if not committed:
            runs(e)
    assert e.status().state is W.ABSENT
    e.kill()


def agent_killed(kind: str, stage: str, delay: str) -> None:
    """kill -9 of the agent at a stage of a save; a new one takes over."""
    e = engine()
    child = os.fork()
    if child == 0:
        agent_that_dies(kind == "final", stage, float(delay))
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, status
    time.sleep(0.5)
    found = e.adopt()
    if found.pending_final is not None:
        assert kind == "final"
        assert stage != "sync"
        stands_still(e)
        e.settle(False)
    elif kind == "final":
        assert stage in ("sync", "freeze"), found
    until(lambda: shim_protocol.ask(BASE / "job", "status")["dumping"] is None)
    e.adopt()
    runs(e)
    e.save(request(2, final=False))
    runs(e)
    e.save(request(3, final=True))
    e.kill()
    numbers = [int(line.split()[1]) for line in output(e).decode().splitlines() if line.startswith("turn")]
    assert numbers == list(range(len(numbers)))


def agent_that_dies(final: bool, stage: str, delay: float) -> None:
    e = engine()
    begin(e, job())

    def progress(now: str) -> None:
        if now == stage and delay:
            threading.Timer(delay, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        elif now == stage:
            os.kill(os.getpid(), signal.SIGKILL)

    e.save(request(1, final=final, progress=progress))
    os._exit(1)


def settled_true() -> None:
    """The agent dies right after the final entry: the next one lets the job die without one more step."""
    e = engine()
    child = os.fork()
    if child == 0:
        agent_that_dies(final=True, stage="kill", delay=0.0)
    os.waitpid(child, 0)
    assert e.adopt().pending_final == object_keys.checkpoint_id(1, 1)
    stands_still(e)
    before = output(e)
    e.settle(True)
    assert e.status().state is W.ABSENT
    assert output(e) == before
    e.kill()


def criu_killed() -> None:
    """CRIU itself dies. Before the freeze is told: the save fails. While a final save waits: the job still stands still."""
    e = engine()
    begin(e, job())

    def kill_criu(stage: str) -> None:
        if stage == "upload":
            for pid in processes("cmdline", b"dump.log"):
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)
            stands_still(e)

    refused("save", lambda: e.save(request(1, final=True, commit=lambda _: False, progress=kill_criu)))
    runs(e)
    e.save(request(2, final=True, progress=kill_criu))
    assert e.status().state is W.ABSENT
    store = open_store("file:///run/store")
    e.kill()
    e.restore(newest(store), job())
    runs(e)
    e.kill()


TALKS = """
import socket, time
listener = socket.create_server(("127.0.0.1", 0))
a = socket.create_connection(listener.getsockname())
b, _ = listener.accept()
memory = bytearray(range(256)) * (1 << 20)  # CRIU has some time to go when it is done with the connections
for i in range(10**6): a.sendall(b"%d" % i); print("turn", int(b.recv(9)), flush=True); time.sleep(0.001)
"""


def criu_killed_while_it_holds_connections(when: str) -> None:
    """CRIU takes a connection out of service to save it, and dies or is ended: the save fails, and the job still talks."""
    tools.STALL_SECONDS = 3.0
    e = engine()
    e.start(Spec(JOB, ["/usr/bin/python3", "-c", TALKS]))
    turns_pass(e, 5)

    def strike(now: str) -> None:
        if when == "hook" and now == "snapshot":
            hit(signal.SIGKILL)
        if when == "dump" and now == "freeze":
            threading.Thread(target=stop).start()

    def hit(number: signal.Signals) -> None:
        for pid in processes("cmdline", b"dump.log"):
            os.kill(pid, number)

    def stop() -> None:
        log = BASE / "job/images" / f"{object_keys.checkpoint_id(1, 1)}.work/dump.log"
        until(lambda: log.exists() and log.read_bytes().count(b"Dumping inet socket") > 2)
        hit(signal.SIGSTOP)

    told = refused("save", lambda: e.save(request(1, final=False, progress=strike)))
    assert when == "hook" or "was ended" in told, told
    runs(e)
    turns_pass(e, 200)
    e.save(request(2, final=True))
    e.kill()
    e.restore(newest(open_store(STORE)), job())
    runs(e)
    e.kill()


def killed_at_the_hook() -> None:
    """A process of the job is killed while CRIU traces it, just before it runs: the restore fails soon, the next one works."""

    def strike() -> None:
        until(lambda: processes("cmdline", b"restore.log"))
        shim = int((shim_protocol.read_json(STARTED) or {})["pid"])
        os.kill(shim, signal.SIGSTOP)
        try:
            until(lambda: processes("environ", b"CRTOOLS_SCRIPT_ACTION=pre-resume"))
            first = int(Path(BASE, "job/images/restore.work/pid").read_text())
            victim = Path(f"/proc/{first}/task/{first}/children").read_text().split()[0]
            os.kill(int(victim), signal.SIGKILL)
        finally:
            os.kill(shim, signal.SIGCONT)

    _, seconds = fails_once(strike)
    assert seconds < 15


def criu_hangs_in_a_restore() -> None:
    """CRIU does nothing any more while it restores: it is ended, that is told, and the next restore works."""
    tools.STALL_SECONDS = 3.0

    def stop_criu() -> None:
        until(lambda: processes("cmdline", b"restore.log"))
        for pid in processes("cmdline", b"restore.log"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    told, _ = fails_once(stop_criu)
    assert "CRIU waited for something that does not answer" in told, told


def fails_once(strike: Callable[[], None]) -> tuple[str, float]:
    """A restore fails because something strikes meanwhile, and the next one works; what was told, after how many seconds."""
    e = engine()
    begin(e, job())
    e.save(request(1, final=True))
    e.kill()
    image = newest(open_store(STORE))
    told, seconds = "", 0.0
    for _ in range(STRIKES):
        thread = threading.Thread(target=strike)
        thread.start()
        began = time.monotonic()
        with contextlib.suppress(NotRefused):
            told = refused("restore", lambda: e.restore(image, job()))
        seconds = time.monotonic() - began
        thread.join()
        if told:
            break
        e.kill()  # the strike came too late
    assert told
    assert e.status().state is W.ABSENT
    e.restore(image, job())
    runs(e)
    e.kill()
    return told, seconds


def processes(file: str, text: bytes) -> list[int]:
    """Those with this text in a file of theirs under /proc."""
    found = []
    for p in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if text in (p / file).read_bytes():
                found.append(int(p.name))
    return found


def criu_hangs() -> None:
    """CRIU does nothing any more before the tree is written: it is ended, the job runs on, and the next save is whole."""
    tools.STALL_SECONDS = 3.0
    e = engine()
    begin(e, job(400 << 20))
    stopped = list[int]()

    def stop_criu() -> None:
        while not stopped:
            for p in e.shim.tool_group().pids():
                with contextlib.suppress(FileNotFoundError):  # one of its helpers that ended meanwhile
                    said = any(log.stat().st_size for log in (BASE / "job/images").glob("*.work/dump.log"))
                    if said and b"dump.log" in Path(f"/proc/{p}/cmdline").read_bytes():
                        os.kill(p, signal.SIGSTOP)
                        stopped.append(p)

    for final in (False, True):
        stopped.clear()
        thread = threading.Thread(target=stop_criu)
        thread.start()
        told = refused("save", partial(e.save, request(1 + final, final=final)))
        thread.join()
        assert "CRIU waited for something that does not answer" in told, told
        assert "Version" in (BASE / "job/failed-dump.log").read_text()
        (BASE / "job/failed-dump.log").unlink()
        runs(e)
    e.save(request(3, final=True))
    e.kill()
    e.restore(newest(open_store(STORE)), job())
    runs(e)
    e.kill()


def group_goes_first() -> None:
    """What a job used is known while it is being ended: its control group goes before its keeper."""
    e = engine()
    begin(e, job())
    until(lambda: e.status().cpu_seconds > 0)
    used, group = e.status().cpu_seconds, e.shim.cgroup()
    with mock.patch.object(e.shim, "cgroup", lambda: JobCgroup({c: f"{folder}-gone" for c, folder in group.folders.items()})):
        assert e.status().cpu_seconds == used
        assert e.status().cpu_seconds == used
    runs(e)
    e.kill()
    assert e.status().cpu_seconds > used


def agent_and_shim_go_after_the_end() -> None:
    """What a job used is written down with its exit status."""
    e = engine()
    e.start(Spec(JOB, ["sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; exit 3"]))
    until(lambda: e.status().state is W.EXITED)
    used, shim = e.status().cpu_seconds, e.shim._shim
    assert shim is not None
    shim.kill()
    shim.wait()
    e = engine()
    seen = e.adopt()
    assert (seen.state, seen.exit_code) == (W.EXITED, 3)
    assert used / 2 < seen.cpu_seconds <= used, (seen, used)
    e.kill()


def scope_of_its_own() -> None:
    """As under systemd: the shim lies in a control group that is not below the agent's; the job's are below the shim's."""
    scope = JobCgroup.below_own("scope-1")
    scope.create()
    enter = f'for f in {" ".join(scope.entries())}; do echo $$ > "$f"; done; exec "$@"'
    with mock.patch.object(cgroup, "scope_prefix", lambda _: ["sh", "-c", enter, "-"]):
        e = engine()
        begin(e, job())
        assert all("/scope-1/" in folder for folder in e.shim.cgroup().folders.values()), e.shim.cgroup()
        runs(e)
        e.save(request(1, final=True))
        e.kill()
        e.restore(newest(open_store(STORE)), job())
        runs(e)
        assert e.status().cpu_seconds > 0 < len(e.pids())
        e.kill()
    scope.remove()


def lost() -> None:
    """The shim is killed: that is told, not guessed around, and a kill cleans up."""
    e = engine()
    assert e.preflight() == []
    assert not STARTED.exists(), "a respawner would take this machine for one with a job"
    begin(e, job())
    assert STARTED.exists()
    shim_gone(e)
    assert e.status().state is W.LOST
    assert engine().adopt().state is W.LOST
    e.kill()
    assert e.status().state is W.ABSENT
    begin(e, job())
    runs(e)
    e.kill()
