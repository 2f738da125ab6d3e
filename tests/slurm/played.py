"""A controller that is played: the API's routes that Slurm's commands use, and jobs as processes of this host.

It stands for controller, machines and courier at once: four processors, output straight into the named files, and a minute of a
time limit or warning lasts `MINUTE` seconds.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socketserver
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import IO, Any
from urllib.parse import parse_qs, unquote, urlsplit

from slurm.transcripts import FIRST_NUMBER

from spotsurfer.jobspec.queueing import begins_at
from spotsurfer.jobspec.validate import problems
from spotsurfer.model.job import JobSpec, MarketChoice
from spotsurfer.model.queueing import arrays
from spotsurfer.model.queueing.dependencies import After, read_after
from spotsurfer.ports.clock import SystemClock

CLOCK = SystemClock()
MINUTE = 4.0
CPUS, LICENCES = 4, {"vcs": 2}
KILL_SECONDS = 3.0
PLACE = re.compile(r"\{(number|task)(?::(\d+))?\}")
ENDED = ("succeeded", "failed", "cancelled")


@dataclass
class Task:
    """A job or a task of an array."""

    id: str
    number: int
    array: str
    task: int | None
    spec: JobSpec
    submitted: datetime
    begins: datetime | None
    conditions: list[tuple[str, str]] = field(default_factory=list)
    wish: str = "run"
    state: str = "queued"
    never: bool = False
    started: datetime | None = None
    ended: datetime | None = None
    exit_code: int | None = None
    ended_by: str = ""
    process: subprocess.Popen[bytes] | None = None
    warned: bool = False
    killed_at: float | None = None
    printed: IO[bytes] = field(default_factory=tempfile.TemporaryFile)


class Played:
    """The table of jobs; `look` is one tick."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}
        self.lock = threading.RLock()
        self.next = FIRST_NUMBER
        self.stopping = threading.Event()

    # ---- a tick

    def run(self) -> None:
        """Until it is stopped."""
        while not self.stopping.wait(0.05):
            with self.lock:
                self.look()

    def look(self) -> None:
        """End what has ended, start what may start."""
        now = CLOCK.now()
        for task in self.tasks.values():
            if task.state == "active":
                self._watch(task, now)
        free = CPUS - sum(t.spec.cpus for t in self.tasks.values() if t.state == "active")
        for task in self.tasks.values():
            if task.state == "queued" and not self.waits_for(task, now) and task.wish == "run" and task.spec.cpus <= free:
                self._start(task, now)
                free -= task.spec.cpus

    def waits_for(self, task: Task, now: datetime) -> str:
        """The gate at which a task waits."""
        for kind, on in task.conditions:
            before = [t for t in self.tasks.values() if on in (t.id, t.array)]
            if kind == After.SINGLETON:
                before = [t for t in self.tasks.values() if t.spec.name == task.spec.name and t.number < task.number]
            if kind == After.OK and any(t.state in ("failed", "cancelled") for t in before):
                return "never"
            if any(t.state == "queued" or (kind != After.BEGUN and t.state not in ENDED) for t in before):
                return "dependency"
            if kind == After.NOT_OK and all(t.state == "succeeded" for t in before):
                return "never"
        if task.begins and task.begins > now:
            return "begin"
        alive = [t for t in self.tasks.values() if t.state == "active"]
        limit = arrays.read_array(task.spec.array).limit if task.array else 0
        if limit and sum(t.array == task.array for t in alive) >= limit:
            return "array"
        for name, count in licences(task.spec).items():
            if sum(licences(t.spec).get(name, 0) for t in alive) + count > LICENCES[name]:
                return "licences"
        return ""

    def _start(self, task: Task, now: datetime) -> None:
        spec = task.spec
        out = self._open(task, spec.stdout) if spec.stdout else os.dup(task.printed.fileno())
        err = self._open(task, spec.stderr) if spec.stderr else os.dup(out)
        given = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "TMPDIR": "/tmp"}
        if task.task is not None:
            given["SPOTSURFER_TASK"] = str(task.task)
        task.process = subprocess.Popen(
            spec.command,
            env=given | {k: str(task.number) if v == "{number}" else v for k, v in spec.environment.items()},
            stdout=out,
            stderr=err,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        task.state, task.started = "active", now
        for fd in {out, err}:
            os.close(fd)

    def _open(self, task: Task, pattern: str) -> int:
        values = {"number": task.number, "task": task.task if task.task is not None else ""}
        path = Path(PLACE.sub(lambda found: str(values[found[1]]).zfill(int(found[2] or 0)), pattern))
        path.parent.mkdir(parents=True, exist_ok=True)
        again = any(t.started and t.number == task.number for t in self.tasks.values() if t.spec.stdout == task.spec.stdout)
        kept = os.O_APPEND | (0 if task.spec.output_append or (again and "{task" not in pattern) else os.O_TRUNC)
        return os.open(path, os.O_WRONLY | os.O_CREAT | kept, 0o644)

    def _watch(self, task: Task, now: datetime) -> None:
        assert task.process is not None and task.started is not None
        code = task.process.poll()
        limit = task.spec.time_limit_seconds
        age = (now - task.started).total_seconds()
        if code is not None:
            self._end(task, code, now)
        elif task.killed_at is not None:
            if time.monotonic() > task.killed_at + KILL_SECONDS:
                self.signal(task, signal.SIGKILL)
        elif limit is not None and age > limit / 60 * MINUTE:
            task.ended_by = "time limit"
            self.kill(task)
        elif limit and task.spec.warn_signal and not task.warned and age > (limit - task.spec.warn_seconds) / 60 * MINUTE:
            task.warned = True
            self.signal(task, signal.Signals[f"SIG{task.spec.warn_signal}"])

    def _end(self, task: Task, code: int, now: datetime) -> None:
        task.exit_code, task.ended = (128 - code if code < 0 else code), now
        task.state = "cancelled" if task.wish == "cancel" else "failed" if code or task.ended_by else "succeeded"

    def signal(self, task: Task, number: signal.Signals) -> None:
        """To all processes of a task."""
        if task.process is not None:
            os.killpg(task.process.pid, number)

    def kill(self, task: Task) -> None:
        """Ask it to end; it is killed soon."""
        task.killed_at = time.monotonic()
        self.signal(task, signal.SIGCONT)
        self.signal(task, signal.SIGTERM)

    # ---- what the API is asked

    def submit(self, body: dict[str, Any]) -> dict[str, Any]:
        """One job or array."""
        raw = body["spec"]
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()}
        values["market"] = MarketChoice(values["market"])
        spec = JobSpec(**values)
        for key, why in problems(spec):
            raise ValueError(f"{key} {why}.")
        if spec.cpus > CPUS:
            raise LookupError(f"no machine on offer has {spec.cpus} processors")
        for name, count in licences(spec).items():
            if LICENCES.get(name, 0) < count:
                raise ValueError(f"resources.licences names {name!r}, of which there are {LICENCES.get(name, 0)}.")
        conditions = [(str(c.kind), self._place(c.on) if c.on else "") for c in read_after(spec.after)]
        number, now = self.next, CLOCK.now()
        self.next += 1
        id, of = f"{spec.name.lower()[:20].strip('-._')}-{number}", arrays.read_array(spec.array).tasks if spec.array else ()
        for task in of or (None,):
            name = id if task is None else str(arrays.task_id(id, task))
            own = [("afterok", f"{on}-{task}") if kind == "aftercorr" else (kind, on) for kind, on in conditions]
            of_task = spec if task is None else arrays.of_task(spec, task)
            wish = "hold" if body.get("held") else "run"
            self.tasks[name] = Task(name, number, id if of else "", task, of_task, now, begins_at(spec, now), own, wish)
        return {"job": id, "number": number, "tasks": len(of)}

    def _place(self, name: str) -> str:
        number, _, task = name.partition("_")
        for one in self.tasks.values():
            if str(one.number) == number and (not task or str(one.task) == task):
                return one.id if task or not one.array else one.array
        raise ValueError(f"after names {name!r}, and there is no such job.")

    def brief(self, task: Task) -> dict[str, Any]:
        """As GET /v1/brief shows it."""
        now = CLOCK.now()
        spec, waits = task.spec, self.waits_for(task, now) if task.state == "queued" else ""
        told = waits in ("dependency", "never")
        same = {k: getattr(task, k) for k in ("id", "number", "array", "task", "state", "wish", "exit_code", "ended_by")}
        asked = {k: getattr(spec, k) for k in ("name", "project", "cpus", "memory_bytes", "gpus", "time_limit_seconds", "home")}
        times = {"submitted_at": task.submitted, "started_at": task.started, "ended_at": task.ended}
        return {
            **same,
            **asked,
            **{k: at and at.isoformat() for k, at in times.items()},
            "owner": "root",
            "phase": "queued" if task.state == "queued" else "running",
            "reason": "",
            "array_limit": arrays.read_array(spec.array).limit if task.array else 0,
            "after": [k if k == "singleton" else f"{k}:{self._number(on)}" for k, on in task.conditions] if told else [],
            "machine": "node-1" if task.started else "",
            "market": str(spec.market),
            "waits_for": waits,
            "tasks": "",
        }

    def _number(self, on: str) -> str:
        found = next(t for t in self.tasks.values() if on in (t.id, t.array))
        if found.task is None:
            return str(found.number)
        return f"{found.number}_{found.task}" if found.id == on else f"{found.number}_*"

    def view(self, task: Task) -> dict[str, Any]:
        """As GET /v1/jobs/ID shows it."""
        spec = {k: getattr(task.spec, k) for k in JobSpec.__slots__}
        return self.brief(task) | {"spec": spec, "attempts": [{"instance": "node-1"}]}

    def named(self, name: str) -> list[Task]:
        """Jobs by the id of a job or array, or as `ARRAY-[1-3]`."""
        array, bracket, tasks = name.partition("-[")
        if bracket:
            return [self.tasks[f"{array}-{task}"] for task in arrays.read_array(tasks.rstrip("]")).tasks]
        return [t for t in self.tasks.values() if name in (t.id, t.array)]

    def wish(self, task: Task, what: str, body: dict[str, Any]) -> None:
        """A user's command."""
        if what == "cancel":
            task.wish = "cancel"
            if task.state == "active":
                self.kill(task)
            elif task.state == "queued":
                task.state, task.ended = "cancelled", CLOCK.now()
        elif what in ("hold", "resume"):
            task.wish = "hold" if what == "hold" else "run"
            if task.state == "active":
                self.signal(task, signal.SIGSTOP if what == "hold" else signal.SIGCONT)
        elif what == "signal":
            self.signal(task, signal.Signals[f"SIG{body['signal']}"])


def licences(spec: JobSpec) -> dict[str, int]:
    """What it needs of them."""
    return dict(getattr(spec, "licences", {}))


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """On a Unix socket."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: Path) -> None:
        self.played = Played()
        super().__init__(str(path), Handler)
        self.threads = [threading.Thread(target=f, daemon=True) for f in (self.serve_forever, self.played.run)]
        for thread in self.threads:
            thread.start()

    def close(self) -> None:
        """Stop, with all jobs."""
        self.played.stopping.set()
        self.shutdown()
        self.server_close()
        for thread in self.threads:
            thread.join()
        for task in self.played.tasks.values():
            if task.process is not None and task.process.poll() is None:
                self.played.signal(task, signal.SIGKILL)
                task.process.wait()
            task.printed.close()


class Handler(BaseHTTPRequestHandler):
    """The routes."""

    @property
    def played(self) -> Played:
        """The table of jobs."""
        assert isinstance(self.server, Server)
        return self.server.played

    def address_string(self) -> str:
        """Of a Unix socket."""
        return "unix"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        """A question."""
        self._answer({})

    def do_POST(self) -> None:
        """A wish."""
        length = int(self.headers.get("Content-Length") or 0)
        self._answer(json.loads(self.rfile.read(length)) if length else {})

    do_PUT = do_POST

    def _answer(self, body: dict[str, Any]) -> None:
        try:
            with self.played.lock:
                data, code = self._found(body), 200
        except (ValueError, LookupError, KeyError) as error:
            kind = {ValueError: "JobFileError", LookupError: "NoCapacity"}.get(type(error), "NotFound")
            data, code = json.dumps({"error": kind, "message": str(error.args[0])}).encode(), 422
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _found(self, body: dict[str, Any]) -> bytes:
        played, url = self.played, urlsplit(self.path)
        parts, query = [unquote(p) for p in url.path.split("/")[2:]], parse_qs(url.query)
        match parts:
            case ["brief"]:
                ended = query.get("ended") != ["false"]
                found: Any = {"jobs": [played.brief(t) for t in played.tasks.values() if ended or t.state not in ENDED]}
            case ["info"]:
                found = {"instances": 0, "instances_max": 1, "provider": "node-1"}
            case ["plans"]:
                fits = body["spec"]["cpus"] <= CPUS
                found = {"choices": [{"instance_type": "node-1"}] if fits else [], "obstacle": "" if fits else "too large"}
            case ["jobs"]:
                found = {"jobs": [played.submit(one) for one in body["jobs"]]}
            case ["jobs", job]:
                found = played.view(played.tasks[job])
            case ["jobs", job, "log"]:
                return self._log(played.tasks[job], query)
            case ["jobs", _, "priority"]:
                found = {}
            case ["jobs", job, what]:
                for task in played.named(job):
                    played.wish(task, what, body)
                found = {}
            case _:
                raise KeyError(self.path)
        return json.dumps(found, default=str).encode()

    def _log(self, task: Task, query: dict[str, list[str]]) -> bytes:
        begin = int(query.get("out", ["0"])[0])
        data = os.pread(task.printed.fileno(), 1 << 20, begin)
        parts = [json.dumps({"stream": "out", "bytes": len(data)}).encode() + b"\n" + data] if data else []
        last = {"next": {"out": begin + len(data), "err": 0, "times": 0}}
        return b"".join([*parts, json.dumps(last).encode(), b"\n"])
