"""What happens on a minibox: each function is one scene, run in fresh namespaces by `python -m support.engine_scenes`."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from spotsurfer_agent import manifest, protocol, shimwire
from spotsurfer_agent.engines.criu import CriuEngine
from spotsurfer_agent.engines.port import EngineError, SaveRequest, WorkloadState
from spotsurfer_agent.manifest import Manifest
from spotsurfer_agent.protocol import Spec
from spotsurfer_agent.store import ObjectStore, StoreError, open_store
from spotsurfer_agent.tools import Tools

BASE, JOB = Path("/var/lib/spotsurfer"), "j1"
SHARE = Path("/run/share")
PROGRAM = Path(__file__).with_name("engine_job.py")
SMALL = 32 << 20
W = WorkloadState


def engine(store: ObjectStore | None = None) -> CriuEngine:
    prefix = Path(os.environ["SPOTSURFER_PREFIX"])
    return CriuEngine(BASE, JOB, store or open_store("file:///run/store"), Tools.find(prefix))


def job(memory: int = SMALL, turns: int = 10**6, user: str | None = None) -> Spec:
    return Spec(JOB, ["/usr/bin/python3", "engine_job.py", str(memory), str(turns)], user=user)


def begin(e: CriuEngine, spec: Spec) -> None:
    shutil.copy(PROGRAM, Path(e.scratch(), "work"))
    e.start(spec)
    turns_pass(e, 5)


def request(
    number: int,
    *,
    final: bool,
    commit: Callable[[Manifest], bool] = lambda _: True,
    base: str | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> SaveRequest:
    return SaveRequest(protocol.checkpoint_id(1, number), 1, number, final, 10.0, base, commit, progress)


def until(what: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def output(e: CriuEngine, stream: str = "out") -> bytes:
    first = min(int(p.name.rpartition("-")[2]) for p in (BASE / "job/log").glob(f"{stream}-*"))
    out, at = b"", first
    while piece := e.read_log(stream, at, 1 << 20):
        out, at = out + piece, at + len(piece)
    return out


def turns_pass(e: CriuEngine, count: int) -> None:
    before = (e.status().log or {}).get("out", 0)
    until(lambda: (e.status().log or {}).get("out", 0) > before + 7 * count)


def runs(e: CriuEngine) -> None:
    status = e.status()
    assert (status.state, status.pending_final) == (W.RUNNING, None), status
    turns_pass(e, 3)


def stands_still(e: CriuEngine) -> None:
    before = e.status().log
    time.sleep(0.3)
    assert e.status().log == before


def newest(store: ObjectStore) -> Manifest:
    keys = [x.key for x in store.list(f"jobs/{JOB}/checkpoints/")]
    data = store.get(keys[-1])
    assert data is not None
    return manifest.decode(data)


def keep_output(e: CriuEngine, limit: dict[str, int]) -> bool:
    """Put what belongs to the job's history, up to the checkpoint, with what earlier machines kept."""
    for stream in ("out", "err"):
        with (SHARE.parent / "store" / f"log-{stream}").open("ab") as f:
            at = f.tell()
            f.write(e.read_log(stream, at, limit[stream] - at))
    return True


def refused(kind: str, call: Callable[[], object]) -> str:
    try:
        call()
    except EngineError as e:
        assert e.kind == kind, e
        return str(e)
    raise AssertionError(f"no EngineError({kind!r})")


# ---------------------------------------------------------------- scenes


def first_machine(memory: str, turns: str, user: str) -> None:
    """Start, save live twice, save for the last time."""
    e = engine()
    assert e.preflight() == []
    assert e.status().state is W.ABSENT
    begin(e, job(int(memory), int(turns), user if user != "-" else None))
    live = e.save(request(1, final=False))
    runs(e)
    again = e.save(request(2, final=False, base=live.checkpoint))
    assert again.new_bytes < max(live.new_bytes, 8 << 20)
    runs(e)
    drain(e, 3)


def drain(e: CriuEngine, number: int) -> None:
    kept: list[Manifest] = []

    def commit(image: Manifest) -> bool:
        kept.append(image)
        assert e.status().pending_final == image.id
        return keep_output(e, image.log)

    facts = e.save(request(number, final=True, commit=commit))
    assert e.status().state is W.ABSENT
    assert 0 < facts.frozen_seconds < 30
    assert facts.durable_seconds > 0
    assert kept[0].cpu_seconds > 10.0
    e.kill()


def middle_machine(_memory: str, _turns: str, _user: str) -> None:
    """Restore, save live, restore that one, save for the last time."""
    store = open_store("file:///run/store")
    e, image = engine(store), newest(store)
    e.restore(image, job())
    assert e.status().cpu_seconds < 5
    runs(e)
    e.save(request(image.sequence + 1, final=False, base=image.id, commit=lambda i: keep_output(e, i.log)))
    runs(e)
    e.kill()
    assert e.status().state is W.ABSENT
    e.restore(newest(store), job())
    runs(e)
    drain(e, image.sequence + 2)


def last_machine(_memory: str, turns: str, user: str) -> None:
    """Restore and see the end: everything once, nothing missing."""
    store = open_store("file:///run/store")
    e = engine(store)
    e.restore(newest(store), job())
    until(lambda: e.status().state is W.EXITED, 60.0)
    status = e.status()
    assert status.exit_code == 7, output(e, "err")
    assert status.log is not None
    keep_output(e, status.log)
    out = Path("/run/store/log-out").read_text().split("\n")
    uid = "0" if user == "-" else "65534"
    assert out[0] == f"uid {uid} pid 2 home {BASE}/home"
    assert out[1:] == [f"turn {i}" for i in range(int(turns))] + ["end", ""]
    assert Path("/run/store/log-err").read_text().split("\n") == [f"tenth {i}" for i in range(0, int(turns), 10)] + [""]
    assert Path(e.scratch(), "work/growing.txt").read_text().split() == [str(i) for i in range(int(turns))]
    shim_gone(e)
    assert e.status().exit_code == 7
    e.kill()


def shim_gone(e: CriuEngine) -> None:
    pid = shimwire.ask(BASE / "job", "hello")["pid"]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    until(lambda: not Path(f"/proc/{pid}").exists())
    assert e.status().state is not W.RUNNING


def shell() -> None:
    """A plain shell script: live, final, restored twice from the same image."""
    store = open_store("file:///run/store")
    e = engine(store)
    script = "i=0; while [ $i -lt 60 ]; do echo line-$i; i=$((i+1)); sleep 0.05; done; exit 3"
    e.start(Spec(JOB, ["sh", "-c", script], folder="deep/er", environment={"GREETING": "hi"}))
    turns_pass(e, 2)
    e.save(request(1, final=False))
    e.save(request(2, final=True))
    for _ in range(2):
        e.kill()
        e.restore(newest(store), job())
    until(lambda: e.status().state is W.EXITED)
    assert e.status().exit_code == 3
    whole = b"".join(b"line-%d\n" % i for i in range(60))
    assert output(e) == whole[newest(store).log["out"] :]
    e.kill()
    e.kill()


def held() -> None:
    """Hold stops, release goes on, a save while held is refused, a hold during a save takes hold when CRIU lets go."""
    e = engine()
    begin(e, job())
    e.hold()
    e.hold()
    assert e.status().held
    stands_still(e)
    assert "held" in refused("save", lambda: e.save(request(1, final=False)))
    e.release()
    runs(e)
    e.save(request(2, final=False, progress=lambda stage: e.hold() if stage == "snapshot" else None))
    assert e.status().held
    stands_still(e)
    e.release()
    runs(e)
    refused("save", lambda: e.save(request(3, final=True, commit=lambda _: [e.hold()] == 0)))
    assert e.status().held
    stands_still(e)
    e.release()
    runs(e)
    e.hold()
    e.kill()


class Failing:
    """A store that fails from a certain write on."""

    def __init__(self, after: int) -> None:
        self._inner, self.left = open_store("file:///run/store"), after

    def create(self, key: str, data: bytes) -> bool:
        self.left -= 1
        if self.left < 0:
            raise StoreError("no such luck")
        return self._inner.create(key, data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


def failing_store() -> None:
    """P3: whatever write fails, and when the commit says no, the job runs on; afterwards a save works."""
    store = Failing(0)
    e = engine(store)  # type: ignore[arg-type]
    begin(e, job())
    tries = [(after, final) for after in (0, 3, 10, 30) for final in (False, True)]
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
            assert e.status().pending_final == protocol.checkpoint_id(1, number)
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
    until(lambda: shimwire.ask(BASE / "job", "status")["dumping"] is None)
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
    assert e.adopt().pending_final == protocol.checkpoint_id(1, 1)
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
            pids = [p for p in Path("/proc").iterdir() if p.name.isdigit() and b"dump.log" in (p / "cmdline").read_bytes()]
            for p in pids:
                os.kill(int(p.name), signal.SIGKILL)
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


def lost() -> None:
    """The shim is killed: that is told, not guessed around, and a kill cleans up."""
    e = engine()
    begin(e, job())
    shim_gone(e)
    assert e.status().state is W.LOST
    assert engine().adopt().state is W.LOST
    e.kill()
    assert e.status().state is W.ABSENT
    begin(e, job())
    runs(e)
    e.kill()


def ends_meanwhile() -> None:
    """The job ends by itself while a save begins, or while its image is on the way."""
    for number, stage in ((1, "sync"), (2, "upload")):
        e = engine()
        begin(e, job(turns=10**6))

        def stop(now: str, stage: str = stage, e: CriuEngine = e) -> None:
            if now == stage:
                pids = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and workload(p)]
                for pid in pids:
                    os.kill(pid, signal.SIGTERM)
                until(lambda e=e: e.status().state is W.EXITED)

        assert "ended by itself" in refused("save", partial(e.save, request(number, final=False, progress=stop)))
        status = e.status()
        assert (status.state, status.exit_code) == (W.EXITED, 128 + signal.SIGTERM)
        assert engine().adopt().exit_code == 128 + signal.SIGTERM
        e.kill()


def workload(process: Path) -> bool:
    try:
        return b"engine_job.py" in (process / "cmdline").read_bytes()
    except OSError:
        return False


def refusals() -> None:
    """Facts that do not fit are told with both values and nothing is touched; damage names checkpoint and chunk."""
    store = open_store("file:///run/store")
    e = engine(store)
    begin(e, job())
    e.save(request(1, final=True))
    image = newest(store)
    mark = Path(e.scratch(), "work/mark")
    mark.touch()
    for name, value in (("machine", "vax"), ("cpu registers", "sse"), ("file /usr/bin/env", "1 bytes"), ("CRIU", "99.0")):
        facts = {**image.facts, name: value}
        told = refused("refused", partial(e.restore, dataclasses.replace(image, facts=facts), job()))
        assert value in told
        assert name in told
    assert mark.exists()
    digest = image.image[-1].chunks[0].digest if image.image[-1].chunks else image.scratch[-1].chunks[0].digest
    path = Path("/run/store", protocol.chunk_key(JOB, digest))
    whole = path.read_bytes()
    for damage in (whole[:-1] + bytes([whole[-1] ^ 1]), b"", None):
        path.unlink()
        if damage is not None:
            path.write_bytes(damage)
        told = refused("restore", lambda: e.restore(image, job()))
        assert digest in told
        assert image.id in told
        assert e.status().state is W.ABSENT
        path.write_bytes(whole)
    e.restore(image, job())
    runs(e)
    assert not mark.exists()
    e.kill()


NETWORK = """
import socket, time, sys
try:
    socket.create_connection(("169.254.169.254", 80), 2); print("metadata reached", flush=True)
except OSError as e: print("no metadata", flush=True)
s = socket.create_connection(("10.201.0.1", 7000), 5); print(s.recv(100).decode().strip(), flush=True)
try: s.recv(100); print("closed", flush=True)
except OSError as e: print("outside gone:", type(e).__name__, flush=True)
time.sleep(1000)
"""


def network() -> None:
    """The way out works, the metadata service is out of reach, and a connection to the outside ends with a move."""
    os.system("ip address add 169.254.169.254/32 dev lo")
    metadata = socket.create_server(("0.0.0.0", 80))  # inside the box's own network namespace
    outside = socket.create_server(("0.0.0.0", 7000))
    store = open_store("file:///run/store")
    e = engine(store)
    e.start(Spec(JOB, ["/usr/bin/python3", "-c", NETWORK]))
    peer, _ = outside.accept()
    peer.sendall(b"hello\n")
    until(lambda: b"hello" in output(e))
    assert output(e) == b"no metadata\nhello\n"
    e.save(request(1, final=False))
    time.sleep(0.5)
    assert output(e) == b"no metadata\nhello\n"
    e.save(request(2, final=True))
    e.kill()
    e.restore(newest(store), job())
    until(lambda: b"outside gone" in output(e))
    e.kill()
    metadata.close()


def strict() -> None:
    """What the job sees: only its own folder writable, the agent's files hidden, no io_uring, nothing inherited."""
    e = engine()
    script = """
import os, ctypes
for p in ("/etc/x", "/usr/x", "/run/x", "/root/x"):
    try: open(p, "w"); print("wrote", p)
    except OSError: pass
for p in ("x", "/tmp/x", "/var/tmp/x", "/dev/shm/x", os.environ["HOME"] + "/x"): open(p, "w")
print(sorted(os.listdir("/var/lib/spotsurfer")), sorted(os.listdir("/proc/self/fd")), os.getsid(0), os.getppid())
print(ctypes.CDLL(None, use_errno=True).syscall(425, 1, 0), ctypes.get_errno(), sorted(os.environ))
"""
    e.start(Spec(JOB, ["/usr/bin/python3", "-c", script], environment={"MINE": "1"}))
    until(lambda: e.status().state is W.EXITED)
    lines = (
        output(e).decode().splitlines() + output(e, "err").decode().splitlines()
        if e.status().exit_code
        else output(e).decode().splitlines()
    )
    assert lines[0] == "['.spotsurfer', 'home', 'shm', 'tmp', 'work'] ['0', '1', '2', '3'] 1 1", lines
    assert lines[1].startswith("-1 0 ") or lines[1].startswith("-1 38 "), lines
    assert "SPOTSURFER_JOB" in lines[1] and "MINE" in lines[1] and "TMPDIR" not in lines[1]
    e.kill()
    assert "does not exist" in refused("start", lambda: e.start(Spec(JOB, ["true"], user="nosuchuser")))
    e.start(Spec(JOB, ["no-such-program"]))
    until(lambda: e.status().state is W.EXITED)
    assert e.status().exit_code == 127
    e.kill()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
