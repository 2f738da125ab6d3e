"""A job on this machine, its lines, and how long it stood still."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from spotsurfer_agent.engines.job_host import Origin
from spotsurfer_agent.host.tools import Tools
from spotsurfer_agent.store.credentials import StoreAccess
from spotsurfer_wire import object_keys
from spotsurfer_wire.chunks import budget
from spotsurfer_wire.linux import memory
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.messages import SaveFacts, Spec
from spotsurfer_wire.store.obstore import open_store
from support import engine_kit

BASE, STORE, SHARE = engine_kit.BASE, Path("/run/store"), engine_kit.SHARE
TMPFS = Path("/mnt")
T = TypeVar("T")
JOBS = Path(__file__).parents[1] / "jobs"
ROUNDS = 3  # how often each scene is played; the command line says it
LOOK_SECONDS = 0.002
SETTLE_SECONDS = 0.3
PATIENCE_SECONDS = 300.0
AFTERWARDS = ("commit", "kill")  # steps of a save that is durable: the next one is prepared, and a job that moves away ended


@dataclass(frozen=True, slots=True)
class Line:
    """One line that the job printed: its number and the job's own clocks."""

    number: int
    monotonic: float
    real: float


class Runner:
    """An engine with a job, as the agent drives it."""

    def __init__(self, url: str = f"file://{STORE}", options: Mapping[str, str] | None = None) -> None:
        tools = Tools.find(Path(os.environ["SPOTSURFER_PREFIX"]))
        self._origin = Origin(StoreAccess(url, dict(options or {})))
        self.engine = engine_kit.CriuEngine(BASE, engine_kit.JOB, open_store(url, options), tools, self._origin)
        self.engine.limits = dataclasses.replace(budget.USUAL, threads=budget.threads_here())
        self._number = 0
        self.stages: dict[str, float] = {}

    def set_lazy(self, lazy: bool) -> None:
        """Choose how the engine brings memory back."""
        self.engine.origin = dataclasses.replace(self._origin, lazy=lazy)

    def start(self, kind: str, size_bytes: int, noise_percent: int = 50) -> None:
        """Start a job of `bench/jobs`; its memory is filled when this returns."""
        work = Path(self.engine.scratch(), "work")
        work.mkdir(parents=True, exist_ok=True)
        if kind == "heap":
            shutil.copy(JOBS / "heap.py", work)
            command = ["/usr/bin/python3", "heap.py", str(size_bytes)]
        else:
            shutil.copy(SHARE / "job", work)
            command = ["./job", kind, str(size_bytes), str(noise_percent)]
        self.engine.start(Spec(engine_kit.JOB, ["/bin/sh", "-c", 'exec "$@"', "-", *command]))
        self.wait_for("ready", 0)

    def save(self, *, final: bool = False, base: str | None = None) -> SaveFacts:
        """One save, committed at once. `stages` says afterwards how long each of its steps took."""
        self._number += 1
        reached: list[tuple[str, float]] = []

        def progress(stage: str) -> None:
            reached.append((stage, time.monotonic()))

        facts = self.engine.save(engine_kit.request(self._number, final=final, base=base, progress=progress))
        reached.append(("end", time.monotonic()))
        memory.trim_memory()  # as the agent does after each task
        self.stages = {a[0]: round(b[1] - a[1], 4) for a, b in itertools.pairwise(reached)}
        return facts

    @property
    def ordered_seconds(self) -> float:
        """From the order to save until all of the last save was durable: from then on others may be told, the commit."""
        return sum(seconds for stage, seconds in self.stages.items() if stage not in AFTERWARDS)

    def position(self) -> int:
        """Bytes that the job printed so far."""
        return int((self.engine.status().log or {}).get("out", 0))

    def read(self, at: int) -> bytes:
        """The job's output from an absolute offset."""
        out = b""
        while piece := self.engine.read_log("out", at + len(out), 1 << 20):
            out += piece
        return out

    def wait_for(self, word: str, at: int, seconds: float = PATIENCE_SECONDS) -> list[str]:
        """The words of the first whole line that begins with `word`, from an offset on."""
        end, seen = time.monotonic() + seconds, b""
        while time.monotonic() < end:
            seen += self.read(at + len(seen))
            whole = seen[: seen.rfind(b"\n") + 1].decode()
            for text in whole.splitlines():
                if text.startswith(word + " "):
                    return text.split()
            time.sleep(LOOK_SECONDS)
        raise AssertionError(f"the job did not say {word!r} within {seconds:.0f} s: {seen[-200:]!r}")

    def tell(self, command: str, answer: str) -> list[str]:
        """Have the job do something; returns the words of its answer."""
        at = self.position()
        work = Path(self.engine.scratch(), "work")
        (work / "command.new").write_text(command + "\n")
        (work / "command.new").replace(work / "command")
        return self.wait_for(answer, at)

    def lines(self, at: int) -> list[Line]:
        """The heartbeats of the job from an offset on."""
        text = self.read(at).decode(errors="replace")
        found = []
        for words in (x.split() for x in text[: text.rfind("\n") + 1].splitlines()):
            if len(words) == 4 and words[0] == "n":
                found.append(Line(int(words[1]), int(words[2]) / 1e9, int(words[3]) / 1e9))
        return found

    def gap(self, what: Callable[[], T]) -> tuple[float, T]:
        """The longest pause in seconds that the job itself saw while `what` happened, by its own clock; and its result."""
        at = max(0, self.position() - 200)
        result = what()
        time.sleep(SETTLE_SECONDS)
        beats = [x.monotonic for x in self.lines(at)]
        assert len(beats) > 2, "the job printed nothing"
        return max(b - a for a, b in itertools.pairwise(beats)), result

    def first_line(self, order: Callable[[], object]) -> float:
        """Seconds from the order until the job printed something; the order may return before or after that."""
        before, started = self.read_from(), time.monotonic()
        order()
        self.wait_for("n", before)
        return time.monotonic() - started

    def read_from(self) -> int:
        """Where the output of the newest image ends: a restored job prints on from there."""
        return int(engine_kit.newest(open_store(f"file://{STORE}")).log["out"])

    def forget(self) -> None:
        """Let the store be empty again, as before a job's first save.

        Nothing is removed: ext4 is slow at making files for a minute after it removed many, which no store does before a save.
        Where one round is played nothing comes after it, and a large job may need the room.
        """
        if (STORE / "jobs").exists():
            (STORE / "jobs").rename(forgotten := STORE / f"forgotten-{len(list(STORE.iterdir()))}")
            if ROUNDS == 1:
                shutil.rmtree(forgotten)
        settle()

    def newest(self) -> Manifest:
        """The manifest of the last save."""
        return engine_kit.newest(open_store(f"file://{STORE}"))


def settle() -> None:
    """Nothing of an earlier step may still be on its way to a disk."""
    os.sync()
    time.sleep(SETTLE_SECONDS)


def warm() -> None:
    """What is stored lies in the page cache, as what it is compared with lies in memory: a disk's speed is no part of it."""
    with contextlib.suppress(FileNotFoundError):  # the store clears its leftovers meanwhile
        for path in STORE.rglob("*"):
            if path.is_file():
                path.read_bytes()


def say(text: str) -> None:
    """Progress for who waits."""
    with (SHARE / "progress").open("a") as f:
        f.write(text + "\n")


def timed(what: Callable[[], object]) -> float:
    """Seconds that a call took."""
    began = time.monotonic()
    what()
    return time.monotonic() - began


def run(argv: list[str], **options: object) -> None:
    """A program that must end well; what it said is in the error."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, f"{argv[:6]} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}"


def checkpoint(number: int) -> str:
    """The id of a save by its number."""
    return object_keys.checkpoint_id(1, number)
