"""Scenes on a minibox with the stand-in's cards: a job on a GPU is saved, moved, refused, and unharmed when something fails."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from spotsurfer_agent.chunks.fingerprints import Printer
from spotsurfer_agent.engines import criu_cuda
from spotsurfer_agent.engines.choice import JobEngine
from spotsurfer_agent.engines.job_host import Origin
from spotsurfer_agent.gpu import process_discovery, suspend_resume
from spotsurfer_agent.host import root_fs
from spotsurfer_agent.host.tools import Tools
from spotsurfer_agent.prepare.inputs import delivery
from spotsurfer_agent.save import blockers
from spotsurfer_agent.store.credentials import StoreAccess
from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.obstore import open_store
from support import cuda_standin
from support.engine_kit import BASE, JOB, STORE, W, keep_output, newest, output, refused, request, turns_pass, until

from bench.gpu import floor

agents: list[JobEngine] = []
SIZE, TURNS = 24 << 20, 250
SENT_ABOVE_SHARE = 0.03
NODES = "null zero full random urandom tty ptmx loop-control"
MACHINE = f"""
set -e
mkdir -p /tmp/dev && mount -t tmpfs -o size=1m dev /tmp/dev
for n in {NODES}; do cp -a /dev/$n /tmp/dev/; done
cp -a /dev/net /tmp/dev/
mkdir /tmp/dev/pts /tmp/dev/shm && mount -t devpts -o newinstance,ptmxmode=0666 devpts /tmp/dev/pts
mknod -m 666 /tmp/dev/nvidia0 c 10 237
mknod -m 666 /tmp/dev/nvidiactl c 1 5
mount --move /tmp/dev /dev
mount -t tmpfs -o size=900m cards {cuda_standin.CARDS}
"""


def machine(**more: object) -> None:
    """Cards, a device that CRIU can't save (it has the number of the loop devices' controller), and one that can be mapped.

    Jobs see the folder of the cards, for the memory of each is a file there.
    """
    subprocess.run(["sh", "-c", MACHINE], check=True)
    cuda_standin.lay(cuda_standin.CARDS, **more)  # type: ignore[arg-type]
    brought, cards = delivery.input_mounts, root_fs.Mount("cards", str(cuda_standin.CARDS), str(cuda_standin.CARDS))
    delivery.input_mounts = lambda spec, base: [*brought(spec, base), cards]
    blockers.OWN = (*blockers.OWN, f"{cuda_standin.CARDS}/mem-")  # no machine has that file, and a turn of the program opens it


def ladder(spec: Spec) -> JobEngine:
    store = open_store(STORE)
    store.delete([object_keys.spec_key(JOB)])
    store.create(object_keys.spec_key(JOB), json_codec.encode(spec))
    found = Tools.find(Path(os.environ["SPOTSURFER_PREFIX"]))
    tools = dataclasses.replace(found, cuda=(sys.executable, cuda_standin.__file__))

    for before in agents:
        before.cuda.driver()[0].close()  # as it ends with its agent
    agents.append(JobEngine(BASE, JOB, store, tools, Origin(StoreAccess(STORE))))
    return agents[-1]


def job(mode: str = "plain", turns: int = 10**6) -> Spec:
    return Spec(JOB, ["/usr/bin/python3", "cuda_standin.py", "program", str(SIZE), str(turns), mode])


def begun(mode: str = "plain", turns: int = 10**6) -> JobEngine:
    e = ladder(job(mode, turns))
    shutil.copy(cuda_standin.__file__, Path(e.scratch(), "work"))
    e.start(job(mode, turns))
    turns_pass(e, 3)
    return e


def unharmed(e: JobEngine) -> None:
    status = e.status()
    assert (status.state, status.pending_final) == (W.RUNNING, None), status
    turns_pass(e, 3)
    assert not (BASE / "job" / suspend_resume.MARKER).exists()


# ---------------------------------------------------------------- a move


def first_machine() -> None:
    machine()
    e = begun(turns=TURNS)
    e.look()
    assert (e.protection().rung, e.protection().reason) == ("criu+cuda", "")
    live = e.save(request(1, final=False))
    assert live.device_out_seconds > 0 < live.device_back_seconds
    unharmed(e)
    e.save(request(2, final=False, base=live.checkpoint))
    unharmed(e)
    e.save(request(3, final=True, commit=lambda image: keep_output(e, image.log)))
    assert e.status().state is W.ABSENT
    assert cuda_standin.used() == 0
    e.kill()


def last_machine() -> None:
    """Other cards of the same kind: each is mapped to another one."""
    machine(seed="b")
    image = newest(open_store(STORE))
    assert image.engine == "criu+cuda"
    assert image.facts["GPU"] == cuda_standin.CHIP
    e = ladder(job(turns=TURNS))
    assert e.unfit(image) == ""
    e.restore(image, job(turns=TURNS))
    until(lambda: e.status().state is W.EXITED, 60.0)
    assert e.status().exit_code == 7, output(e, "err")
    keep_output(e, e.status().log or {})
    e.kill()
    assert Path("/run/store/log-out").read_bytes() == _undisturbed("plain", TURNS)


def _undisturbed(mode: str, turns: int) -> bytes:
    """What the program prints if nothing happens to it."""
    argv = ["/usr/bin/python3", cuda_standin.__file__, "program", str(SIZE), str(turns), mode]
    done = subprocess.run(argv, capture_output=True, check=False)
    assert done.returncode == 7, done.stderr
    return done.stdout


def forked() -> None:
    """Children that were forked lose what they inherited, and miss nothing: not after live saves, not on the next machine."""
    machine()
    turns = 150
    e = begun("fork", turns)
    assert len(process_discovery.holdings(e.pids())) == 3, "the program, its child and a child of that"
    e.look()
    assert (e.protection().rung, e.protection().reason) == ("criu+cuda", "")
    live = e.save(request(1, final=False))
    assert len(process_discovery.holdings(e.pids())) == 1
    unharmed(e)
    e.save(request(2, final=False, base=live.checkpoint))
    unharmed(e)
    e.save(request(3, final=True, commit=lambda image: keep_output(e, image.log)))
    e.kill()
    e.restore(newest(open_store(STORE)), job("fork", turns))
    until(lambda: e.status().state is W.EXITED, 60.0)
    assert e.status().exit_code == 7, output(e, "err")
    keep_output(e, e.status().log or {})
    e.kill()
    assert Path("/run/store/log-out").read_bytes() == _undisturbed("fork", turns)


def refusals() -> None:
    """Each names both values, and nothing is touched."""
    image = newest(open_store(STORE))
    machine(chip="NVIDIA H100")
    rows = {
        "GPU was 'NVIDIA H200' where it was made and is 'NVIDIA H100' here": {"chip": "NVIDIA H100"},
        "GPU count was '1' where it was made and is '2' here": {"count": 2},
        "GPU driver was '580.159.04' where it was made and is '590.1' here": {"driver": "590.1"},
        "GPU was 'NVIDIA H200' where it was made and is 'none' here": {"unfit": "there is none"},
    }
    for told, here in rows.items():
        cuda_standin.lay(cuda_standin.CARDS, **here)  # type: ignore[arg-type]
        e = ladder(job())
        assert told in e.unfit(image), e.unfit(image)
        assert told in refused("refused", lambda e=e: e.restore(image, job()))
        assert e.status().state is W.ABSENT
    cuda_standin.lay(cuda_standin.CARDS, total=40 << 20)
    (cuda_standin.CARDS / "mem-other").write_bytes(bytes(30 << 20))
    criu_cuda.ROOM_SECONDS = 0.5
    e = ladder(job())
    assert e.unfit(image) == "", "memory may be free by then"
    assert "another program uses it" in refused("refused", lambda: e.restore(image, job()))
    assert e.status().state is W.ABSENT
    (cuda_standin.CARDS / "mem-other").unlink()
    e.restore(image, job())
    turns_pass(e, 2)
    e.kill()


def moved() -> None:
    """Memory that comes to lie elsewhere at each save is sent once: a second save sends what is new, wherever it lies.

    The job does not wait for the comparison.
    """
    machine()
    e = begun("moves")
    live = e.save(request(1, final=False))
    turns_pass(e, 3)
    stages, compared, of_pages = [""], set[str](), Printer.of_pages

    def noted(printer: Printer, data: memoryview) -> bytes:
        compared.add(stages[-1])
        return of_pages(printer, data)

    Printer.of_pages = noted  # type: ignore[method-assign]
    second = e.save(request(2, final=False, base=live.checkpoint, progress=stages.append))
    assert compared == {"upload"}, compared
    lies = [x.split()[1] for x in output(e).decode().splitlines() if x.startswith("lies")]
    assert len(set(lies)) == 2, lies
    least = floor.of(open_store(STORE), [live.checkpoint, second.checkpoint])
    assert least is not None
    assert least < 0.3, least  # most of it did not change
    assert second.new_bytes / second.image_bytes <= least + SENT_ABOVE_SHARE, (second, least)
    e.kill()


def threaded(how: str) -> None:
    """Threads that would end the job while its memory is out: with them held it is saved, restored, and saved again.

    `how`: those of all jobs are "held", those of a library that is "known" to need it, or none ("running"); or it is "refused".
    """
    machine(slow=0.3)
    criu_cuda.CudaSave.holds_threads = how == "held"
    process_discovery.FRAIL = (
        {"/spin.so": process_discovery.Frail("Spin", held=how == "known")} if how in ("known", "refused") else {}
    )
    e = ladder(job("threads"))
    work = Path(e.scratch(), "work")
    shutil.copy(cuda_standin.__file__, work)
    spin = Path(cuda_standin.__file__).with_name("spin.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", str(work / "spin.so"), str(spin)], check=True)
    e.start(job("threads"))
    turns_pass(e, 3)
    if how == "refused":
        assert "Spin, and that library's threads would end it" in refused("save", lambda: e.save(request(1, final=False)))
        unharmed(e)
        e.kill()
        return
    if how == "running":
        refused("save", lambda: e.save(request(1, final=False)))
        until(lambda: e.status().state is W.EXITED)
        assert e.status().exit_code == 128 + signal.SIGSEGV, "a thread that runs meanwhile is seen"
        e.kill()
        return
    e.save(request(1, final=False))
    unharmed(e)
    assert "not accepted" in refused("save", lambda: e.save(request(2, final=True, commit=lambda _: False)))
    unharmed(e)
    e.save(request(3, final=True))
    e.kill()
    image = newest(open_store(STORE))
    assert image.facts["GPU restore threads"]
    e.restore(image, job("threads"))
    turns_pass(e, 3)
    e.save(request(4, final=False))
    unharmed(e)
    e.kill()


# ---------------------------------------------------------------- failures


def cant(mode: str, told: str) -> None:
    """What can't be saved is said, and nobody is harmed."""
    machine(**({"lies": True} if mode == "lies" else {"mig": True} if mode == "mig" else {}))
    suspend_resume.LOCK_SECONDS, suspend_resume.RELEASED_BYTES_MIN = 1.0, 1 << 20
    if mode == "short":
        suspend_resume.free_bytes = lambda: 1 << 20
    e = begun("plain" if mode in ("lies", "mig", "short") else mode)
    sentence = refused("save", lambda: e.save(request(1, final=False)))
    assert told.replace("_", " ") in sentence, sentence
    unharmed(e)
    assert told.replace("_", " ") in refused("save", lambda: e.save(request(2, final=True)))
    unharmed(e)
    e.kill()


def retried() -> None:
    """A lock that fails is tried again."""
    machine()
    e = begun()
    (cuda_standin.CARDS / "refusals").write_text("3")
    e.save(request(1, final=False))
    unharmed(e)
    assert (cuda_standin.CARDS / "refusals").read_text() == "0"
    e.kill()


def late() -> None:
    """A job without a GPU is saved by CRIU; from when it opens one, with it."""
    machine()
    e = ladder(job("late"))
    shutil.copy(cuda_standin.__file__, Path(e.scratch(), "work"))
    e.start(job("late"))
    turns_pass(e, 3)
    e.save(request(1, final=False))
    assert newest(open_store(STORE)).engine == e.name == "criu"
    Path(e.scratch(), "work", "open").touch()
    until(lambda: b"turn 3" in output(e))
    e.save(request(2, final=False))
    assert newest(open_store(STORE)).engine == e.name == "criu+cuda"
    unharmed(e)
    e.kill()


def sidecar_killed(stage: str, delay: str) -> None:
    """In whatever it does: a live save fails or does not, the job runs on; and the next save works."""
    machine(slow=0.4)
    e = begun()
    e.look()

    def kill() -> None:
        time.sleep(float(delay))
        pid = e.cuda.driver()[0].pid
        if pid:
            os.kill(pid, signal.SIGKILL)

    def watch(seen: str) -> None:
        if seen == stage:
            threading.Thread(target=kill).start()

    try:
        e.save(request(1, final=False, progress=watch))
    except Exception as error:
        assert "side-car died" in str(error), error
    unharmed(e)
    e.save(request(2, final=False))
    unharmed(e)
    e.save(request(3, final=True))
    e.kill()
    e.restore(newest(open_store(STORE)), job())
    turns_pass(e, 2)
    e.kill()


def agent_killed(stage: str, delay: str) -> None:
    """Its successor brings back what it had taken out, and sets the machine back."""
    machine(slow=0.4)
    before = suspend_resume.huge_page_setting()
    suspend_resume.SETTING.write_text("madvise")
    child = os.fork()
    if child == 0:
        mine = begun()

        def die(seen: str) -> None:
            if seen == stage:
                threading.Timer(float(delay), lambda: os.kill(os.getpid(), signal.SIGKILL)).start()

        mine.save(request(1, final=False, progress=die))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    e = ladder(job())
    assert e.adopt().state is W.RUNNING
    assert suspend_resume.huge_page_setting() == "madvise"
    suspend_resume.SETTING.write_text(before)
    unharmed(e)
    e.save(request(2, final=False))
    unharmed(e)
    e.kill()


def taken() -> None:
    """Another program takes the GPU's memory during a live save: the checkpoint counts, the job is lost and goes on from it."""
    machine(total=40 << 20)
    e = begun()
    other = cuda_standin.CARDS / "mem-other"

    def take(seen: str) -> None:
        if seen == "snapshot":
            other.write_bytes(bytes(30 << 20))

    kept: list[Manifest] = []
    e.save(request(1, final=False, progress=take, commit=lambda image: not kept.append(image)))
    until(lambda: e.status().state is W.LOST)
    assert "too little free memory on the GPU" in e.status().lost_because
    assert not e.status().image_is_bad
    e.kill()
    other.unlink()
    e.restore(kept[0], job())
    turns_pass(e, 2)
    e.kill()


def unclear() -> None:
    """A final save whose commit says no, or nothing: the job runs on once that is known."""
    machine()
    e = begun()
    assert "not accepted" in refused("save", lambda: e.save(request(1, final=True, commit=lambda _: False)))
    unharmed(e)
    fails: Callable[[Manifest], bool] = lambda _: (_ for _ in ()).throw(ValueError("no answer"))  # noqa: E731
    try:
        e.save(request(2, final=True, commit=fails))
    except ValueError:
        assert e.status().pending_final is not None
    e = ladder(job())
    e.adopt()
    e.settle(False)
    unharmed(e)
    e.kill()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
