"""The engine alone: a training job gets a notice, is saved with its GPU memory, and goes on in a new box to the same result.

Real agents in machines of namespaces on this host, each with a metadata service that gives the notice; the store is a folder in
memory. What the controller does, granting the job to the next machine, is done here by the same log. With `--standin` a driver
that is none takes the GPU's place: that shows the road on any host, and says nothing about speed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotsurfer_wire import clock, json_codec, object_keys
from spotsurfer_wire.head_log import HeadLog
from spotsurfer_wire.messages import AgentConfig, Head, HeadKind, Spec
from spotsurfer_wire.store.obstore import open_store
from spotsurfer_wire.store.port import ObjectStore

from bench.gpu import demonstration, jobs
from bench.gpu.box import command
from bench.gpu.demonstration import Failed

HERE = Path(__file__).parent
STANDIN = HERE.parents[1] / "tests/support/cuda_standin.py"
NOTICE_SECONDS, LOOK_SECONDS = 120.0, 0.02
Steps = list[tuple[float, int]]


@dataclass
class Box:
    """A machine with its agent."""

    process: subprocess.Popen[bytes]
    share: Path

    def steps(self) -> Steps:
        """When which step of the job was seen there."""
        path = self.share / "steps"
        rows = [x.split() for x in path.read_text().splitlines() if x.count(" ") == 1] if path.exists() else []
        return [(float(at), int(number)) for at, number in rows]

    def log(self) -> str:
        """The end of what its agent said."""
        return (self.share / "agent.log").read_text(errors="replace")[-1500:]


@dataclass
class Story:
    """One job with its boxes. `marks`: what happened, and when, on this host's monotonic clock."""

    options: argparse.Namespace
    name: str
    boxes: list[Box] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder = self.options.work / self.name
        (self.folder / "store").mkdir(parents=True)
        self.store: ObjectStore = open_store((self.folder / "store").as_uri())
        argv, program = _job(self.options)
        own = {} if self.options.standin else jobs.environment()
        data = program.read_bytes()
        spec = Spec(self.name, argv, inputs={program.name: len(data)}, input_modes={program.name: 0o644}, environment=own)
        self.store.create(object_keys.input_key(self.name, program.name), data)
        self.store.create(object_keys.spec_key(self.name), json_codec.encode(spec))
        self.heads = HeadLog(self.store, self.name)

    def mark(self, what: str, at: float | None = None) -> None:
        """Remember when."""
        self.marks.append((time.monotonic() if at is None else at, what))

    def boot(self) -> Box:
        """The next machine, with its agent."""
        number = len(self.boxes) + 1
        share = self.folder / f"share-{number}"
        share.mkdir()
        config = AgentConfig(
            self.name, number, "file:///run/store", poll_seconds=0.25, report_seconds=1.0, notice_seconds=0.25,
            drain_margin_seconds=2.0, notice_window_seconds=NOTICE_SECONDS, checkpoint_threads=self.options.threads,
            compression="none",
        )  # fmt: skip
        (share / "config").write_bytes(json_codec.encode(config))
        mode = "standin" if self.options.standin else "driver"
        argv = command(self.options.runtime, self.folder / "store", share, "bench.gpu.agentbox", "/run/share/config", mode)
        with (share / "agent.log").open("wb") as log:
            self.boxes.append(Box(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log), share))
        return self.boxes[-1]

    def grant(self) -> None:
        """The newest machine owns the job from here on."""
        last = self.heads.refresh()
        number, epoch = (last.number + 1 if last else 1), len(self.boxes)
        checkpoint, sequence = (last.checkpoint, last.sequence) if last else (None, 0)
        cpu = last.cpu_seconds if last else 0.0
        self.heads.append(Head(number, HeadKind.GRANT, epoch, checkpoint, sequence, False, None, cpu, f"g{number}", ""))

    def until(self, what: Callable[[], object], told: str) -> None:
        """Wait for it. Raises Failed."""
        demonstration.until(what, told, LOOK_SECONDS, self._lost)

    def _lost(self) -> str:
        """Of an agent that ended too early, the last words of all."""
        return str([b.log() for b in self.boxes]) if any(b.process.poll() not in (None, 0) for b in self.boxes) else ""

    def newest(self) -> Head | None:
        """Of the head log."""
        return self.heads.refresh()

    def output(self) -> bytes:
        """What the job printed, under all its machines."""
        whole: dict[int, bytes] = {}
        for found in self.store.list(object_keys.log_prefix(self.name)):
            if "/out-" in found.key:
                whole[int(found.key.rpartition("-")[2])] = self.store.get(found.key) or b""
        out = b""
        for at, piece in sorted(whole.items()):
            out = out[:at] + piece
        return out

    def close(self) -> None:
        """No machine is left."""
        for box in self.boxes:
            box.process.kill()
            box.process.wait()


def _job(options: argparse.Namespace) -> tuple[list[str], Path]:
    if options.standin:
        return ["/usr/bin/python3", STANDIN.name, "program", str(int(options.gb * 2**30)), str(options.steps), "plain"], STANDIN
    return [options.python, "pytorch.py", str(options.gb), str(options.steps)], HERE / "programs/pytorch.py"


def moved(options: argparse.Namespace) -> Story:
    """The job with a notice in the middle of it. Raises Failed."""
    story = Story(options, "surfing")
    try:
        first = story.boot()
        story.grant()
        story.until(lambda: len(first.steps()) >= options.first, "the job's first steps")
        ends = clock.utc() + datetime.timedelta(seconds=NOTICE_SECONDS)
        (first.share / "notice.new").write_text(json.dumps({"action": "terminate", "time": ends.isoformat(timespec="seconds")}))
        (first.share / "notice.new").replace(first.share / "notice")
        story.mark("notice: the cloud takes the machine in two minutes")
        second = story.boot()
        story.until(lambda: (h := story.newest()) is not None and h.final, "the final checkpoint")
        story.mark("checkpoint durable, GPU memory in it; the job is dead here")
        story.mark("last step before it", first.steps()[-1][0])
        story.grant()
        story.mark("the new box owns the job")
        story.until(second.steps, "the first step in the new box")
        story.mark("first step in the new box", second.steps()[0][0])
        story.until(lambda: (h := story.newest()) is not None and h.done, "the job's end")
    finally:
        story.close()
    return story


def undisturbed(options: argparse.Namespace) -> Story:
    """The same job without one. Raises Failed."""
    story = Story(options, "undisturbed")
    try:
        story.boot()
        story.grant()
        story.until(lambda: (h := story.newest()) is not None and h.done, "the undisturbed job's end")
    finally:
        story.close()
    return story


def told(options: argparse.Namespace, story: Story, plain: Story) -> dict[str, Any]:
    """What was seen."""
    marks = sorted(story.marks)
    notice = next(at for at, what in marks if what.startswith("notice"))
    done = story.newest()
    first = next(at for at, what in marks if what.startswith("first step"))
    last = next(at for at, what in marks if what.startswith("last step"))
    return {
        "notice_to_next_step_seconds": round(first - notice, 3),
        "stood_still_seconds": round(first - last, 3),
        "identical": story.output() == plain.output() != b"",
        "exit_code": done.done.exit_code if done and done.done else None,
        "timeline": [(round(at - notice, 3), what) for at, what in marks],
        "gb": options.gb, "device": demonstration.device(options.standin), "store": str(options.work),
        "command": f"python -m bench.gpu.notice {' '.join(sys.argv[1:])}",
    }  # fmt: skip


def show(found: Mapping[str, Any]) -> None:
    """For people."""
    print(f"A job with {found['gb']:g} GB on a GPU ({found['device']}), store in memory ({found['store']})")
    for at, what in found["timeline"]:
        print(f"  {at:9.2f} s  {what}")
    print(f"notice to next training step: {found['notice_to_next_step_seconds']:.2f} s")
    same = "identical" if found["identical"] else "NOT identical"
    print(f"it stood still for {found['stood_still_seconds']:.2f} s; its output is {same}")


def main() -> int:
    """Exit code 0: identical."""
    options = _parser().parse_args()
    options.runtime = options.runtime.resolve()
    shutil.rmtree(options.work, ignore_errors=True)
    Path("/var/lib/spotsurfer").mkdir(exist_ok=True)
    try:
        found = told(options, moved(options), undisturbed(options))
    except Failed as e:
        print(f"the demonstration failed: {e}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(options.work, ignore_errors=True)
    show(found)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if found["identical"] and found["exit_code"] in (0, 7) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.notice", description=__doc__)
    parser.add_argument("--gb", type=float, default=4.0, help="of GPU memory (default %(default)s)")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--first", type=int, default=30, help="the notice comes after so many steps")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--python", default=shutil.which("python3") or "python3", help="of the job")
    parser.add_argument("--runtime", type=Path, default=Path("build/runtime/current"), help="the agent's, unpacked")
    parser.add_argument("--work", type=Path, default=Path("/dev/shm/notice"), help="folder of the store (default %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("build/bench/notice.json"))
    parser.add_argument("--standin", action="store_true", help="without a GPU")
    return parser


if __name__ == "__main__":
    sys.exit(main())
