"""`python -m bench.gpu.faults`: what can go wrong with a job on a GPU, done to one on real hardware.

Each fault has a machine of its own. A row says what was told, and what the job ended with: a number made of all of its GPU
memory, the same in every row. That it ran on, or did not begin where it can't, was looked at.
`--standin` tries it without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from spotsurfer_agent.engines import criu_cuda
from spotsurfer_agent.gpu import suspend_resume
from spotsurfer_agent.ports.engine import EngineError
from spotsurfer_wire.manifest import Manifest
from support import cuda_standin
from support.engine_kit import BASE, W, newest, output, request, until

from bench.gpu import jobs, scenes
from bench.gpu.box import Place, played

END_SECONDS = 120.0
Row = dict[str, Any]


def main() -> int:
    """Exit code 0: every fault ended as it should."""
    options = _parser().parse_args()
    place = Place(options.runtime.resolve(), options.work, options.limit, options.verbose)
    Path("/var/lib/spotsurfer").mkdir(exist_ok=True)
    same = {"command": f"python -m bench.gpu.faults --gb {options.gb:g}", "date": options.date}
    rows: list[Row] = []
    for fault in options.faults or FAULTS:
        shutil.rmtree(options.work, ignore_errors=True)
        (options.work / "store").mkdir(parents=True)
        plan = {"fault": fault, "size": int(options.gb * 2**30), "turns": options.turns, "standin": options.standin}
        try:
            rows.append({"fault": fault, **played(place, fault, "bench.gpu.faults", "inside", json.dumps(plan)), **same})
        except (RuntimeError, subprocess.TimeoutExpired) as e:  # the next one is worth as much
            rows.append({"fault": fault, "error": str(e)[-1500:]})
        print(json.dumps(rows[-1]), flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(rows, indent=1) + "\n")
    shutil.rmtree(options.work, ignore_errors=True)
    ends = {r["end"] for r in rows if r.get("end")}
    return int(len(ends) > 1 or any("error" in r for r in rows))


def program(plan: Row, size: int, mode: str = "plain") -> jobs.Job:
    """On this machine's GPU, or on the stand-in's."""
    return (jobs.standin if plan["standin"] else jobs.compiled)(size, plan["turns"], mode)


class Scene(scenes.Machine):
    """A machine with a job on it that runs."""

    def __init__(self, plan: Row, mode: str = "plain") -> None:
        self.told: list[str] = []
        job = program(plan, plan["size"], mode)
        usual = {"hold": False, "compact": False, "threads": 4, "compression": "none", "memory_bytes": 0, "lazy": False}
        super().__init__({**job, **usual, "standin": plan["standin"]})
        shutil.copy(job["files"][0], Path(self.engine.scratch(), "work"))
        self.engine.start(self.spec)
        if mode != "late":
            self.wait_step(3)

    def refuses(self, what: Callable[[], object]) -> None:
        """It is said, and noted."""
        try:
            what()
        except EngineError as e:
            self.told.append(str(e))
        else:
            raise AssertionError("nothing was refused")

    def unharmed(self) -> None:
        """It runs on."""
        status = self.engine.status()
        assert (status.state, status.pending_final) == (W.RUNNING, None), status
        self.wait_step(self.step() + 3)
        assert not (BASE / "job" / suspend_resume.MARKER).exists()

    def left(self) -> Manifest:
        """Save it for the last time, and end it here."""
        self.save(request(9, final=True))
        self.engine.kill()
        return newest(self.store)

    def ended(self) -> Row:
        """The row, when the job has come to its end."""
        until(lambda: self.engine.status().state is W.EXITED, END_SECONDS)
        assert self.engine.status().exit_code == jobs.EXIT_CODE, output(self.engine, "err")[-500:]
        return self.row(end=output(self.engine).decode().split()[-1])

    def row(self, **more: str) -> Row:
        """What was told, where."""
        about = self.cuda.driver()[0].about()
        return {"told": self.told, **more, "device": about.cards[0].name, "driver": about.driver}


def undisturbed(plan: Row) -> Row:
    """Nothing happens."""
    return Scene(plan).ended()


def sidecar(plan: Row, stage: str, delay: float) -> Row:
    """The side-car is killed during a live save: the job runs on; later saves and a restore work."""
    s = Scene(plan)
    s.engine.look()

    def kill() -> None:
        time.sleep(delay)
        if pid := s.cuda.driver()[0].pid:
            os.kill(pid, signal.SIGKILL)

    def watch(seen: str) -> None:
        if seen == stage:
            threading.Thread(target=kill).start()

    try:
        s.engine.save(request(1, final=False, progress=watch))
    except EngineError as e:
        s.told.append(str(e))
    s.unharmed()
    s.save(request(2, final=False))
    s.unharmed()
    s.engine.restore(s.left(), s.spec)
    return s.ended()


def refused(plan: Row, mode: str) -> Row:
    """What the driver can't save."""
    suspend_resume.LOCK_SECONDS = 2.0
    s = Scene({**plan, "turns": 10**6}, mode)
    for number, final in ((1, False), (2, True)):
        s.refuses(partial(s.engine.save, request(number, final=final)))
        s.unharmed()
    s.engine.kill()
    return s.row()


def short(plan: Row) -> Row:
    """The machine has too little memory for what is on the GPU."""
    s = Scene(plan)
    with mock.patch.object(suspend_resume, "free_bytes", lambda: 1 << 20):
        s.refuses(lambda: s.engine.save(request(1, final=False)))
    s.unharmed()
    s.engine.restore(s.left(), s.spec)
    return s.ended()


def late(plan: Row) -> Row:
    """A job that opens the GPU only after its first save."""
    s = Scene(plan, "late")
    until(lambda: b"waits" in output(s.engine))
    s.save(request(1, final=False))
    assert newest(s.store).engine == "criu"
    Path(s.engine.scratch(), "work", "open").touch()
    s.wait_step(3)
    image = s.left()
    assert image.engine == "criu+cuda"
    s.engine.restore(image, s.spec)
    return s.ended()


def elsewhere(plan: Row) -> Row:
    """The image is of another chip, another number of them, another driver."""
    s = Scene(plan)
    image = s.left()
    for fact, other in (("GPU", "NVIDIA H100"), ("GPU count", "3"), ("GPU driver", "570.1")):
        wrong = dataclasses.replace(image, facts={**image.facts, fact: other})
        assert other in s.engine.unfit(wrong)
        s.refuses(partial(s.engine.restore, wrong, s.spec))
        assert other in s.told[-1] and image.facts[fact] in s.told[-1], s.told
        assert s.engine.status().state is W.ABSENT
    s.engine.restore(image, s.spec)
    return s.ended()


def taken(plan: Row) -> Row:
    """Another program has the GPU's memory when the job comes back."""
    s = Scene(plan)
    image, patience, criu_cuda.ROOM_SECONDS = s.left(), criu_cuda.ROOM_SECONDS, 1.0
    free = min(card.free_bytes for card in s.cuda.driver()[0].about().cards)
    with occupied(plan, free - plan["size"] // 2):
        s.refuses(lambda: s.engine.restore(image, s.spec))
        assert s.engine.status().state is W.ABSENT
    criu_cuda.ROOM_SECONDS = patience
    s.engine.restore(image, s.spec)
    return s.ended()


@contextlib.contextmanager
def occupied(plan: Row, size: int) -> Iterator[None]:
    """Somebody else holds so many bytes of the first GPU."""
    if plan["standin"]:
        other = cuda_standin.CARDS / "mem-other"
        with other.open("wb") as f:
            f.truncate(size)
        yield
        other.unlink()
        return
    job = jobs.compiled(size, 10**6, "plain")
    words = [job["files"][0], *job["command"][1:]]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"turn")
        yield
        process.kill()


FAULTS: dict[str, Callable[[Row], Row]] = {
    "undisturbed": undisturbed,
    "side-car killed as it locks": lambda plan: sidecar(plan, "gpu", 0.0),
    "side-car killed as it copies out": lambda plan: sidecar(plan, "gpu", 0.3),
    "side-car killed while memory is out": lambda plan: sidecar(plan, "snapshot", 0.0),
    "side-car killed as it copies back": lambda plan: sidecar(plan, "resume", 0.1),
    "side-car killed when all is back": lambda plan: sidecar(plan, "upload", 0.0),
    "a kernel without end": lambda plan: refused(plan, "endless"),
    "managed memory": lambda plan: refused(plan, "managed"),
    "a child that opened the device itself": lambda plan: refused(plan, "stranger"),
    "too little memory": short,
    "the GPU opened late": late,
    "other chip, count, driver": elsewhere,
    "GPU memory taken": taken,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.faults", description=__doc__)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"(default all) {', '.join(FAULTS)}")
    parser.add_argument("--gb", type=float, default=2.0, help="GPU memory of the job (default %(default)s)")
    parser.add_argument("--turns", type=int, default=300, help="of the job (default %(default)s)")
    parser.add_argument("--runtime", type=Path, default=Path("build/runtime/current"), help="the agent's, unpacked")
    parser.add_argument("--work", type=Path, default=Path("/dev/shm/bench-faults"), help="folder of the store")
    parser.add_argument("--out", type=Path, default=Path("build/bench/gpu-faults.json"), help="the rows (default %(default)s)")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one fault")
    parser.add_argument("--date", default=time.strftime("%Y-%m-%d", time.gmtime()), help="of the rows (default %(default)s)")
    parser.add_argument("--standin", action="store_true", help="the tests' stand-in takes the driver's and the program's place")
    parser.add_argument("--verbose", action="store_true")
    return parser


if __name__ == "__main__":
    if sys.argv[1:2] == ["inside"]:
        asked: Row = json.loads(sys.argv[2])
        (scenes.SHARE / "figures.json").write_text(json.dumps(FAULTS[asked["fault"]](asked)))
        sys.exit(0)
    sys.exit(main())
