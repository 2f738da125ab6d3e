"""What happens on a minibox: each function is one scene, run in fresh namespaces by `python -m support.engine_scenes`."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import sys
import time
from functools import partial
from pathlib import Path

from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.obstore import open_store
from support import engine_failures
from support.engine_kit import (
    BASE,
    JOB,
    CriuEngine,
    W,
    begin,
    engine,
    file_of,
    job,
    keep_output,
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


def shell() -> None:
    """A plain shell script: live, final, restored twice from the same image."""
    store = open_store("file:///run/store")
    e = engine(store)
    script = "i=0; while [ $i -lt 60 ]; do echo line-$i; i=$((i+1)); sleep 0.05; done; exit 3"
    e.start(Spec(JOB, ["sh", "-c", script], folder="deep/er", environment={"GREETING": "hi"}))
    turns_pass(e, 2)
    score, seen = Path("/proc/self/oom_score_adj"), set[str]()
    before = score.read_text()
    e.save(request(1, final=False, progress=lambda stage: seen.add(f"{stage} {int(score.read_text())}")))
    assert {"freeze 1000", "upload 1000"} <= seen, "where memory ends, the saver has to go and not the job"
    assert score.read_text() == before
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


def ends_meanwhile() -> None:
    """The job ends by itself while a save begins, or while its image is on the way."""
    for number, stage in ((1, "sync"), (2, "upload")):
        e = engine()
        begin(e, job(turns=10**6))

        def stop(now: str, stage: str = stage, e: CriuEngine = e) -> None:
            if now == stage:
                pids = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and workload(p)]
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError):  # a child that ended with its parent
                        os.kill(pid, signal.SIGTERM)
                until(lambda e=e: e.status().state is W.EXITED)

        told = refused("save", partial(e.save, request(number, final=False, progress=stop)))
        assert "ended by itself" in told, (stage, told, e.status())
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
    registers = next(e for e in image.image if e.path.startswith("core-"))  # memory could be missed later
    chunk = image.chunks[next(iter(registers.extents)).chunk]
    harmed = [c.digest for c in image.chunks if c == chunk or (c.pack and c.pack == chunk.pack)]
    path = file_of(chunk)
    whole = path.read_bytes()
    at = chunk.at if chunk.pack else 0
    for damage in (whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], b"", None):
        path.unlink()
        if damage is not None:
            path.write_bytes(damage)
        told = refused("restore", lambda: e.restore(image, job()))
        assert any(digest in told for digest in harmed), (told, harmed)
        assert image.id in told
        assert e.status().state is W.ABSENT
        path.write_bytes(whole)
    e.restore(image, job())
    runs(e)
    assert not mark.exists()
    e.kill()


def fingerprints_lost() -> None:
    """What only the next save would have used is damaged: the job goes on, is saved and goes on again."""
    store = open_store("file:///run/store")
    e = engine(store)
    begin(e, job())
    e.save(request(1, final=True))
    image = newest(store)
    for entry in (x for x in image.image if x.path.startswith("fingerprints-")):
        for chunk in {image.chunks[x.chunk] for x in entry.extents}:
            path = file_of(chunk)
            data = bytearray(path.read_bytes())
            data[chunk.at if chunk.pack else 0] ^= 1
            path.write_bytes(data)
    e.restore(image, job())
    runs(e)
    until(lambda: "can't build on this checkpoint" in (BASE / "job/pager.log").read_text())
    e.save(request(2, final=True, base=image.id))
    e.kill()
    e.restore(newest(store), job())
    runs(e)
    e.kill()


def fingerprints_of_old() -> None:
    """An image whose fingerprints have no key, as 0.2.0 made them: it is restored, and the next save sends everything."""
    e = engine(store := open_store("file:///run/store"))
    begin(e, job())
    e.save(request(1, final=True))
    image = newest(store)
    renamed = [dataclasses.replace(x, path=x.path.removeprefix("finger")) for x in image.image]
    assert renamed != image.image
    e.restore(dataclasses.replace(image, image=renamed), job())
    runs(e)
    until(lambda: "can't build on this checkpoint: it has no fingerprints-" in (BASE / "job/pager.log").read_text())
    e.save(request(2, final=False, base=image.id))
    runs(e)
    e.save(request(3, final=True, base=newest(store).id))
    e.kill()
    e.restore(newest(store), job())
    runs(e)
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


TERMINAL = """
import os, pty, sys
pid, fd = pty.fork()
if pid == 0:
    import time
    for i in range(10**6): print("turn", i, os.isatty(0), os.ttyname(0), flush=True); time.sleep(0.02)
import time
while True: os.write(1, os.read(fd, 4096)); time.sleep(0.1)
"""


def terminal() -> None:
    """A terminal that the job made itself goes on elsewhere, also where the machine's devices can't be changed.

    Some of what was written to it was not read yet at each freeze: it comes once, and as it was.
    """
    os.system("mount --rbind /dev /dev && mount -o remount,bind,ro /dev")
    e = engine()
    e.start(Spec(JOB, ["/usr/bin/python3", "-c", TERMINAL]))
    turns_pass(e, 5)
    e.save(request(1, final=False))
    turns_pass(e, 5)
    refused("save", lambda: e.save(request(2, final=True, commit=lambda _: False)))
    turns_pass(e, 5)
    lines = output(e).split(b"\r\n")
    assert [x.split()[:2] for x in lines[:-1]] == [[b"turn", b"%d" % i] for i in range(len(lines) - 1)], lines
    e.save(request(3, final=True))
    e.kill()
    e.restore(newest(open_store("file:///run/store")), job())
    turns_pass(e, 40)  # its lines are longer
    assert b"\r\r" not in output(e)
    lines = [x.split() for x in output(e).decode().split("\r\n")[1:-1]]
    assert {tuple(x[2:]) for x in lines} == {("True", "/dev/pts/0")}, lines[-3:]
    numbers = [int(x[1]) for x in lines]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    e.kill()


TYPED = """
import os, pty, time
from pathlib import Path
pid, fd = pty.fork()
if pid == 0:
    while not Path("go").exists(): time.sleep(0.02)
    print([os.read(0, 100) for _ in range(3)], flush=True)
    time.sleep(1000)
os.write(fd, b"first\\nsecond\\nthi")
time.sleep(0.2)
print("typed", flush=True)
while not Path("go").exists(): time.sleep(0.02)
time.sleep(0.3)
os.write(fd, b"rd\\n")
heard = b""
while b"]" not in heard: heard += os.read(fd, 4096)
print(heard, flush=True)
time.sleep(1000)
"""


def typed() -> None:
    """Input that nobody had read is there once after live saves, after a last save that was let go, and after a restore."""
    e, store = engine(), open_store("file:///run/store")
    e.start(Spec(JOB, ["/usr/bin/python3", "-c", TYPED]))
    until(lambda: output(e) == b"typed\n")
    e.save(request(1, final=False))
    refused("save", lambda: e.save(request(2, final=True, commit=lambda _: False)))
    e.save(request(3, final=False))
    e.save(request(4, final=True))
    e.kill()
    e.restore(newest(store), job())
    Path(e.scratch(), "work", "go").touch()
    until(lambda: b"]" in output(e))
    heard = b"first\r\nsecond\r\nthird\r\n[b'first\\n', b'second\\n', b'third\\n']\r\n"
    assert output(e) == f"{heard}\n".encode(), output(e)
    e.kill()


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
    assert lines[0] == "['.spotsurfer', 'hints', 'home', 'shm', 'tmp', 'work'] ['0', '1', '2', '3'] 1 1", lines
    assert lines[1].startswith("-1 0 ") or lines[1].startswith("-1 38 "), lines
    assert "SPOTSURFER_JOB" in lines[1] and "MINE" in lines[1] and "TMPDIR" not in lines[1]
    e.kill()
    assert "does not exist" in refused("user", lambda: e.start(Spec(JOB, ["true"], user="nosuchuser")))
    e.start(Spec(JOB, ["no-such-program"]))
    until(lambda: e.status().state is W.EXITED)
    assert e.status().exit_code == 127
    e.kill()


if __name__ == "__main__":
    scenes = {**vars(engine_failures), **globals()}
    scenes[sys.argv[1]](*sys.argv[2:])
