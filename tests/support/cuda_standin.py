"""A GPU driver that is none: the documented states, and the failures that were seen on an H200, on programs without a GPU.

Both ends are here. `Gpu` is what a program of the test uses instead of CUDA; the driver asks a thread of that program, as the
real one does, so that its state travels in the image and it stands still with the program. `StandIn` is the driver. "Cards" are
a folder with `cards.json` (see `lay`); memory in use is a file there. Above `StandIn` is only what runs inside jobs.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import itertools
import json
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

CARDS = Path(os.environ.get("CUDA_STANDIN", "/media"))
SHARED = Path("/dev/shm")
LOOK_SECONDS = 0.002
CHIP, DRIVER = "NVIDIA H200", "580.159.04"


def lay(folder: Path, *, count: int = 1, chip: str = CHIP, total: int = 512 << 20, seed: str = "a", **more: Any) -> None:
    """A machine's cards. `more`: driver, slow (seconds a copy takes),
    lies (copies nothing), mig, unfit (a sentence).
    """
    folder.mkdir(exist_ok=True)
    uuids = [hashlib.md5(f"{seed}{i}".encode()).hexdigest() for i in range(count)]
    told = {"uuids": uuids, "chip": chip, "driver": DRIVER, "total": total, **more}
    (folder / "cards.new").write_text(json.dumps(told))
    (folder / "cards.new").replace(folder / "cards.json")
    (folder / "nvidia0").touch()


def cards() -> dict[str, Any]:
    return dict(json.loads((CARDS / "cards.json").read_text()))


def used() -> int:
    return sum(p.stat().st_size for p in CARDS.glob("mem-*"))


# ---------------------------------------------------------------- inside the program


class Gpu:
    """Memory on a card, and the thread that the driver talks to."""

    def __init__(self, size: int, mode: str = "plain") -> None:
        self._mode, self._calls, self._state = mode, threading.Lock(), "running"
        self.out = ctypes.c_long(0)  # its memory is out: what runs then, but for the restore thread, is lost
        self._broken, self._name = False, f"mem-{os.getpid()}-{os.urandom(4).hex()}"
        self._memory: bytes | mmap.mmap = b""
        self._mapped: mmap.mmap | None = None
        self._uuids = cards()["uuids"]
        self._others: list[mmap.mmap] = []  # what lies where its memory lay before
        self._places: set[int] = set()
        self._asked = 0
        self._open()
        (CARDS / self._name).write_bytes(os.urandom(size) if mode == "moves" else bytes(size))
        self._at = SHARED / f"cuda-{os.getpid()}"
        self._at.mkdir(exist_ok=True)
        if mode == "endless":
            self._calls.acquire()
        threading.Thread(target=self._serve, daemon=True).start()

    def _open(self) -> None:
        path = "/dev/nvidia0" if Path("/dev/nvidia0").exists() else str(CARDS / "nvidia0")
        self._device = os.open(path, os.O_RDONLY)
        if Path("/dev/nvidiactl").exists():
            with Path("/dev/nvidiactl").open("rb") as control:
                self._mapped = mmap.mmap(control.fileno(), mmap.PAGESIZE, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)

    def step(self) -> str:
        """A little work on all of the memory that depends on all work before."""
        with self._calls, (CARDS / self._name).open("r+b") as f:
            first = f.read(32)
            digest = hashlib.sha256(first).digest()
            f.seek(0)
            f.write(digest)
            f.seek(int.from_bytes(digest[:4], "big") % max(os.fstat(f.fileno()).st_size - 64, 1))
            f.write(digest)
        return digest.hex()[:16]

    def digest(self) -> str:
        with self._calls:
            return hashlib.sha256((CARDS / self._name).read_bytes()).hexdigest()

    def _thread(self, _request: dict[str, Any]) -> str:
        return f"SUCCESS {threading.get_native_id()}"

    def _serve(self) -> None:
        while True:
            for ask in sorted(self._at.glob("ask-*")):
                request = json.loads(ask.read_text())
                ask.unlink()
                told = {"result": getattr(self, "_" + request["verb"])(request), "state": self._state}
                fresh = self._at / f"new{ask.name}"
                fresh.write_text(json.dumps(told))
                fresh.replace(self._at / f"told{ask.name[3:]}")
            time.sleep(LOOK_SECONDS)

    def _ask_state(self, _request: dict[str, Any]) -> str:
        return "SUCCESS"

    def _lock(self, request: dict[str, Any]) -> str:
        if self._state != "running":
            return "ILLEGAL_STATE"
        if request["refused"] or not self._calls.acquire(timeout=request["timeout_ms"] / 1000):
            return "NOT_READY"
        self._state = "locked"
        return "SUCCESS"

    def _unlock(self, _request: dict[str, Any]) -> str:
        if self._state != "locked":
            return "ILLEGAL_STATE"
        self._state = "running"
        self._calls.release()
        return "SUCCESS"

    def _checkpoint(self, _request: dict[str, Any]) -> str:
        if self._state != "locked":
            return "ILLEGAL_STATE"
        if self._mode == "managed":
            self._asked += 1
            return "NOT_SUPPORTED" if self._asked == 1 else "UNKNOWN"  # as 580.159.04 does
        self.out.value = 1
        time.sleep(cards().get("slow", 0.0))
        path = CARDS / self._name
        self._memory = b"" if cards().get("lies") else self._elsewhere(path) if self._mode == "moves" else path.read_bytes()
        path.rename(CARDS / f"gone-{self._name}") if cards().get("lies") else path.unlink()
        os.close(self._device)
        if self._mapped is not None:
            self._mapped.close()
        self._state = "checkpointed"
        return "SUCCESS"

    def _elsewhere(self, path: Path) -> mmap.mmap:
        """The same at whole pages, as a driver puts it, but not where it lay: something else takes that place."""
        memory, place = _fresh(path.stat().st_size)
        while place in self._places:
            self._others.append(memory)
            memory, place = _fresh(len(memory))
        self._places.add(place)
        with path.open("rb") as f:
            f.readinto(memory)
        print("lies", place, flush=True)
        return memory

    def _restore(self, request: dict[str, Any]) -> str:
        if self._state != "checkpointed":
            return "ILLEGAL_STATE"
        if self._broken:
            return "OPERATING_SYSTEM"
        here, pairs = cards(), dict(request["pairs"]) or {u: u for u in self._uuids}
        if set(pairs) != set(self._uuids) or set(pairs.values()) != set(here["uuids"]):
            return "INVALID_VALUE"
        time.sleep(here.get("slow", 0.0))
        gone = CARDS / f"gone-{self._name}"
        size = gone.stat().st_size if gone.exists() else len(self._memory)
        if used() + size > here["total"]:
            self._broken = True
            return "OUT_OF_MEMORY"
        gone.rename(CARDS / self._name) if gone.exists() else (CARDS / self._name).write_bytes(self._memory)
        self._memory, self._uuids = b"", here["uuids"]
        self._open()
        self._state, self.out.value = "locked", 0
        return "SUCCESS"


def _fresh(size: int) -> tuple[mmap.mmap, int]:
    """Memory, and where it lies."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return memory, ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _worker() -> TextIO:
    """A forked child and a child of its own. What the first one sends depends on all that it sent before."""
    ours, theirs = os.pipe()
    if os.fork():
        os.close(theirs)
        return os.fdopen(ours)
    os.close(ours)
    parent = os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent:
            time.sleep(0.1)
        os._exit(0)
    said = b""
    with contextlib.suppress(BrokenPipeError):
        while True:
            said = hashlib.sha256(said).hexdigest().encode()
            os.write(theirs, said + b"\n")
    os._exit(0)


def program(size: int, turns: int, mode: str) -> None:
    """Works on its card for so many turns; what it prints tells whether anything was lost."""
    while mode == "late" and not Path("open").exists():
        print("waits", flush=True)
        time.sleep(0.05)
    gpu = Gpu(size, mode)
    if mode == "threads":
        spin = ctypes.CDLL("./spin.so")
        threading.Thread(target=spin.watch, args=(ctypes.byref(gpu.out),), daemon=True).start()
        spin.turns(ctypes.byref(gpu.out), ctypes.c_long(turns))
    if mode == "stranger":
        subprocess.Popen(["sh", "-c", "exec 9</dev/nvidia0; exec sleep 1000"])
    worker = _worker() if mode == "fork" else None
    for i in range(turns):
        fed = () if worker is None else (worker.readline().strip(),)
        print("turn", i, "busy" if mode == "endless" else gpu.step(), *fed, flush=True)
        time.sleep(0.02)
    print("end", gpu.digest(), flush=True)
    sys.exit(7)


# ---------------------------------------------------------------- the driver


class StandIn:
    """A `spotsurfer_agent.gpu.driver_port.Driver`."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def about(self) -> Any:
        from spotsurfer_wire.gpu_facts import About, Card

        here = cards()
        free = here["total"] - used()
        rooms = [free, *(here["total"] for _ in here["uuids"][1:])]  # memory is taken of the first one alone
        mig = bool(here.get("mig"))
        listed = [Card(u, here["chip"], here["total"], room, mig) for u, room in zip(here["uuids"], rooms, strict=True)]
        return About(here["driver"], 13000, tuple(listed))

    def state(self, pid: int) -> Any:
        from spotsurfer_agent.gpu.driver_port import State

        told = self._ask(pid, "ask_state")
        return told["result"], State(told["state"]) if "state" in told else None

    def restore_thread(self, pid: int) -> tuple[str, str]:
        result, _, thread = str(self._ask(pid, "thread")["result"]).partition(" ")
        return result, thread

    def lock(self, pid: int, timeout_ms: int) -> str:
        return str(self._ask(pid, "lock", timeout_ms=timeout_ms, refused=self._refuses(timeout_ms))["result"])

    def _refuses(self, timeout_ms: int) -> bool:
        left = CARDS / "refusals"
        refusals = int(left.read_text()) if left.exists() else 0
        if refusals:
            left.write_text(str(refusals - 1))
            time.sleep(timeout_ms / 1000)
        return refusals > 0

    def checkpoint(self, pid: int) -> str:
        return str(self._ask(pid, "checkpoint")["result"])

    def restore(self, pid: int, pairs: Sequence[tuple[str, str]]) -> str:
        return str(self._ask(pid, "restore", pairs=[list(p) for p in pairs])["result"])

    def unlock(self, pid: int) -> str:
        return str(self._ask(pid, "unlock")["result"])

    def _ask(self, pid: int, verb: str, **more: Any) -> dict[str, Any]:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            inside = next(line.split()[-1] for line in lines if line.startswith("NSpid:"))
            at = Path(f"/proc/{pid}/root{SHARED}/cuda-{inside}")
            if not at.is_dir():
                return {"result": "NOT_INITIALIZED"}
            name = f"{time.monotonic_ns():020}-{os.getpid()}-{next(self._numbers)}"
            fresh, told = at / f"asked-{name}", at / f"told-{name}"
            fresh.write_text(json.dumps({"verb": verb, **more}))
            fresh.rename(at / f"ask-{name}")
            while not told.exists():
                if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX":
                    return {"result": "OPERATING_SYSTEM"}
                time.sleep(LOOK_SECONDS)
            answer: dict[str, Any] = json.loads(told.read_text())
            told.unlink()
        except (OSError, StopIteration):
            return {"result": "OPERATING_SYSTEM"}
        return answer


def sidecar(lock: Path) -> int:
    """The side-car with this driver."""
    from spotsurfer_agent.gpu import driver_port
    from spotsurfer_agent.gpu.sidecar import main

    def make() -> StandIn:
        with contextlib.suppress(FileNotFoundError):
            if unfit := cards().get("unfit"):
                raise driver_port.DriverUnfit(unfit)
        return StandIn()

    return main(make, lock)


if __name__ == "__main__":
    if sys.argv[1] == "program":
        program(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    sys.exit(sidecar(Path(sys.argv[1])))
