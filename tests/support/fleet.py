"""A whole spotsurfer on this host for tests: a real controller, real agents in boxes, and proof that nothing is left."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_providers.local import manual_control
from spotsurfer_wire.head_log import HeadLog
from spotsurfer_wire.messages import Head, HeadKind
from spotsurfer_wire.store.obstore import open_store
from support import levels
from support.boxes import Yard
from support.patience import FACTOR, patient
from support.runtime import unpacked_runtime
from support.tree import ROOT

from spotsurfer.agent_runtime import builder
from spotsurfer.model.errors import SpotsurferError
from spotsurfer.web.client import Client, connect

Json = dict[str, Any]
MARKS = [pytest.mark.real]
ENDED = ("succeeded", "failed", "cancelled")
CONFIG = """\
[controller]
data_dir = "{data}"
tick_seconds = 0.3
offers_seconds = 1
log_format = "json"
[limits]
instances_max = 12
idle_seconds = 0
lease_seconds = 30
lease_margin_seconds = 2
listing_lag_seconds = 3
cooldown_seconds = 2
last_report_seconds = 3
release_again_seconds = 3
[agent]
poll_seconds = 0.3
report_seconds = 1
notice_seconds = 0.3
drain_margin_seconds = 2
checkpoint_interval = "{interval}s"
[provider.local]
runtimes = "{runtimes}"
disk_bytes = 1073741824
clock_offset_seconds_max = 100000
pools = ["local-a/m6i.large", "local-b/m6i.large"]
"""
# For tests about leases. Others have a longer one: beside other tests this host may be slower than six seconds allow.
SHORT_LEASE = CONFIG.replace("lease_seconds = 30", "lease_seconds = 6")
# A chain of hashes: each line depends on all before it, so a step that was lost or done twice shows in every later one. The
# table makes the image some tens of megabytes; a second process and a growing file make it more than one memory.
PROGRAM = """\
import hashlib, os, sys, time
steps, pause = int(sys.argv[1]), float(sys.argv[2])
table = bytearray(os.urandom(1 << 20) * 24)
read, write = os.pipe()
if os.fork() == 0:
    os.close(write)
    with os.fdopen(read) as lines, open("child.txt", "w", buffering=1) as out:
        for line in lines: out.write(str(int(line) * 2) + "\\n")
    os._exit(0)
os.close(read)
to, h = os.fdopen(write, "w", buffering=1), b"begin"
for i in range(steps):
    for _ in range(200): h = hashlib.sha256(h).digest()
    table[i * 4096 % len(table)] = h[0]
    to.write(str(i) + "\\n")
    print(i, h.hex(), flush=True)
    time.sleep(pause)
to.close(); os.wait()
open("result.txt", "w").write(h.hex() + "\\n")
sys.exit(int(sys.argv[3]) if len(sys.argv) > 3 else 0)
"""


def with_disks(disk_bytes: int, config: str = CONFIG) -> str:
    """The configuration with disks of so many bytes."""
    return config.replace("disk_bytes = 1073741824", f"disk_bytes = {disk_bytes}")


def with_kept(machines: int, config: str = CONFIG) -> str:
    """The configuration with so many machines at most, which are kept for further jobs, as by default."""
    return config.replace("instances_max = 12\nidle_seconds = 0\n", f"instances_max = {machines}\n")


def with_pools(pools: Sequence[str], disk_bytes: int, more: str = "") -> str:
    """The configuration with these pools and disks, and with more sections."""
    config = CONFIG[: CONFIG.index("pools = ")] + f"pools = {json.dumps(list(pools))}\n{more}"
    return with_disks(disk_bytes, config)


def expected(steps: int) -> list[str]:
    """What an undisturbed run prints: computed here, by other code than the job's."""
    h, lines = b"begin", []
    for i in range(steps):
        for _ in range(200):
            h = hashlib.sha256(h).digest()
        lines.append(f"{i} {h.hex()}")
    return lines


@dataclass
class Fleet:
    """One configuration in `path`."""

    path: Path
    config: Path
    environment: dict[str, str] | None = None  # of the controller; None: that of the tests
    launcher: Sequence[str] = ()  # a command that starts the controller's
    controller: subprocess.Popen[bytes] | None = None
    steps: dict[str, int] = field(default_factory=dict)

    @property
    def data(self) -> Path:
        return self.path / "data"

    @cached_property
    def client(self) -> Client:
        return connect(self.config)

    # ---- the controller

    def start(self) -> None:
        """Start the controller; it answers when this returns."""
        with (self.path / "controller.log").open("ab") as log:
            command = [*self.launcher, sys.executable, "-m", "spotsurfer", "--config", str(self.config), "serve"]
            self.controller = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.wait(self._answers, "the controller's answer", 30)

    def _answers(self) -> bool:
        assert self.controller is not None
        assert self.controller.poll() is None, (self.path / "controller.log").read_text()[-2000:]
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.data / "api.sock")) == 0

    def kill_controller(self) -> None:
        """-9, as a power cut would."""
        assert self.controller is not None
        self.controller.kill()
        self.controller.wait()

    # ---- jobs

    def submit(self, steps: int = 150, /, pause: float = 0.05, code: int = 0, text: str = PROGRAM, **spec: Any) -> str:
        """A job of the program above, or of another one that prints the same; about `steps * pause` seconds long."""
        spec = {"name": "chain", **spec}
        job = str(self.client.post("/v1/ids", {"name": spec["name"]})["job"])
        program = text.encode()
        self.client.upload(f"/v1/jobs/{job}/inputs/program.py", iter([program]), len(program))
        words = ["/usr/bin/python3", "program.py", str(steps), str(pause), str(code)]
        body = {"command": words, "inputs": ["program.py"], "outputs": ["*.txt"], "cpus": 1, **spec}
        self.client.put(f"/v1/jobs/{job}", {"spec": {"memory_bytes": 1 << 29, **body}, "modes": {"program.py": 0o644}})
        self.steps[job] = steps
        return job

    def show(self, job: str) -> Json:
        return self.client.get(f"/v1/jobs/{job}")

    def moments(self, job: str, kind: str | None = None) -> list[Json]:
        found: list[Json] = self.client.get(f"/v1/jobs/{job}/timeline")["moments"]
        return [m for m in found if kind in (None, m["kind"])]

    def attempt(self, job: str, state: str, number: int | None = None) -> Json | None:
        """An attempt in this state, or None."""
        found = self.show(job)["attempts"]
        return next((a for a in found if a["state"] == state and number in (None, a["number"])), None)

    def wait(self, good: Callable[[], Any], what: object, seconds: float = 60.0) -> Any:
        """The first true answer of `good`; a controller that is just away is borne. `what` is printed as it is in the end."""
        until = time.monotonic() + seconds * FACTOR
        while True:
            with suppress(SpotsurferError, LookupError):  # the controller, or a process, is just away
                found = good()
                if found:
                    return found
            if time.monotonic() > until:
                raise AssertionError(f"waited {seconds * FACTOR:.0f} s in vain for {what}\n{self.explain()}")
            time.sleep(0.05 * FACTOR)  # each look costs the controller something

    def wait_state(self, job: str, state: str, number: int | None = None, seconds: float = 60.0) -> Json:
        found: Json = self.wait(lambda: self.attempt(job, state, number), f"an attempt of {job} that is {state}", seconds)
        return found

    def wait_line(self, job: str, line: int, seconds: float = 60.0) -> None:
        """Until the job printed this line, as far as its log was uploaded."""
        self.wait(lambda: len(self.output(job).splitlines()) > line, f"line {line} of {job}", seconds)

    def wait_end(self, job: str, seconds: float = 120.0) -> Json:
        """The job when it has ended and every machine of it is gone."""

        def over() -> Json | None:
            found = self.show(job)
            gone = all(a["state"] in ("released", "refused") for a in found["attempts"])
            return found if found["state"] in ENDED and gone else None

        ended: Json = self.wait(over, f"the end of {job}", seconds)
        return ended

    def output(self, job: str) -> str:
        return self.client.data(f"/v1/jobs/{job}/log/out", offset=0, limit=1 << 20).decode()

    # ---- machines

    def box(self, job: str, number: int) -> str:
        """The box of an attempt."""
        attempt = next(a for a in self.show(job)["attempts"] if a["number"] == number)
        return str(attempt["instance"])

    def root(self, box: str) -> Path:
        """The files of a box as its own processes see them."""
        return Path(f"/proc/{manual_control.box_status(self.data, box)['pid']}/root")

    def agent_pid(self, box: str) -> int:
        """The agent in a box, by the host's number."""
        return self.process(box, lambda words: "spotsurfer_agent" in words and "--respawn" not in words)

    def shim_pid(self, box: str) -> int:
        return self.process(box, lambda words: "spotsurfer_agent.shim" in words)

    def job_pid(self, box: str) -> int:
        """The job's own first process, below its init."""
        return self.process(box, lambda words: words[:1] == ["/usr/bin/python3"] and "program.py" in words)

    def process(self, box: str, wanted: Callable[[list[str]], bool]) -> int:
        """A process of a box by its command line: a parent before its child. Numbers wrap, they do not tell the age."""
        inner = manual_control.box_status(self.data, box)["pid"]
        try:
            space = Path(f"/proc/{inner}/ns/cgroup").readlink()
        except OSError as e:
            raise LookupError(f"{box} has just ended") from e
        parents = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                same = (folder / "ns" / "cgroup").readlink() == space
                if same and wanted((folder / "cmdline").read_text().split("\0")):
                    parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        eldest = [pid for pid, parent in parents.items() if parent not in parents]
        if not eldest:
            raise LookupError(f"no such process in {box}")
        return min(eldest)

    def inside(self, box: str, command: list[str]) -> str:
        """Run a command in a box as its root."""
        pid = manual_control.box_status(self.data, box)["pid"]
        enter = ["nsenter", "--target", str(pid), "--all", "--", *command]
        return subprocess.run(enter, check=True, capture_output=True, text=True).stdout

    def kill(self, pid: int) -> None:
        """-9; a process that ended meanwhile is no error: a kill at any moment may come too late."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    # ---- verdicts

    def head(self, job: str) -> list[Head]:
        log = HeadLog(open_store((self.data / "store").as_uri()), job)
        log.refresh()
        return log.entries

    def assert_identical(self, job: str) -> None:
        """Output and results are those of an undisturbed run, each line once."""
        lines, printed = expected(self.steps[job]), self.output(job).splitlines()
        wrong = [i for i, (a, b) in enumerate(zip(lines, printed, strict=False)) if a != b]
        assert printed == lines, f"{len(printed)} lines of {len(lines)}, first wrong {wrong[:1]}\n{self.explain()}"
        results = {f["path"]: f for f in self.client.get(f"/v1/jobs/{job}/outputs")["outputs"]}
        assert set(results) == {"result.txt", "child.txt"}
        text = b"".join(self.client.download(f"/v1/jobs/{job}/outputs/result.txt")).decode()
        assert text.strip() == lines[-1].split()[1]
        child = b"".join(self.client.download(f"/v1/jobs/{job}/outputs/child.txt")).decode().split()
        assert child == [str(2 * i) for i in range(self.steps[job])]

    def assert_one_owner(self, job: str) -> None:
        """The head log tells one story: only owners wrote, who had the job before got it back from its own final save alone,
        and it was published once.
        """
        entries = self.head(job)
        owner, published, final = 0, 0, None
        for e in entries:
            if e.kind is HeadKind.COMMIT:
                final = (e.epoch, e.checkpoint) if e.final else None
            if e.kind is HeadKind.GRANT:
                assert e.epoch > owner or (e.epoch, e.checkpoint) == final
                owner = e.epoch
            else:
                assert e.epoch == owner, f"{e} was written by somebody who did not own the job"
            published += e.kind is HeadKind.DONE
        assert published == 1

    def explain(self) -> str:
        """What a failure needs: timelines, the controller's and the boxes' last words."""
        parts = [(self.path / "controller.log").read_text()[-3000:]]
        for job in self.steps:
            with suppress(SpotsurferError):
                parts += [f"{m['at'][11:22]} {m['attempt']} {m['kind']} {m['text']}" for m in self.moments(job)]
        for box in manual_control.living(self.data):
            with suppress(OSError, SpotsurferError):
                parts.append(f"== {box}\n" + (self.root(box) / "var/lib/spotsurfer/agent.log").read_text()[-3000:])
        return "\n".join(parts)


def baked_runtimes(path: Path) -> Path:
    """A folder with the runtime for `[provider.local] runtimes`: unpacking it takes longer than all else that a box does."""
    built = builder.find(ROOT / "build" / "runtime")
    assert built is not None, "call make setup"
    folder = path / "runtimes"
    folder.mkdir()
    (folder / built.sha256).symlink_to(unpacked_runtime())
    return folder


@contextmanager
def fleet(
    path: Path,
    interval: float = 3,
    config: str = CONFIG,
    environment: dict[str, str] | None = None,
    launcher: Sequence[str] = (),
) -> Iterator[Fleet]:
    """A running controller; at the end everything is stopped and nothing may be left."""
    levels.only_for_real_tests("boxes")
    path.mkdir(parents=True, exist_ok=True)
    file = path / "spotsurfer.toml"
    file.write_text(patient(config).format(data=path / "data", interval=interval, runtimes=baked_runtimes(path)))
    made = Fleet(path, file, environment, launcher)
    try:
        made.start()
        yield made
    finally:
        if made.controller is not None and made.controller.poll() is None:
            made.controller.terminate()
            made.controller.wait(20 * FACTOR)
        manual_control.clean(made.data, end_living=True)
        yard = Yard(made.data, None)  # type: ignore[arg-type]
        yard.assert_clean()
