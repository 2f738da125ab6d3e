"""A small controller on a Unix socket: it knows what the plug-in asks of the API, and runs each job at once in a folder.

Its troubles are played: it is away for a while, or does what was asked and loses the answer.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import socketserver
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

Json = dict[str, Any]


@dataclass
class Played:
    """`lost`: answers still to be lost, by method and first part of the path. `runs`: whether jobs run, or wait for ever."""

    folder: Path
    runs: bool = True
    lost: dict[str, int] = field(default_factory=dict)
    jobs: dict[str, Json] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    left: int = 1000

    @property
    def socket(self) -> Path:
        return self.folder / "api.sock"

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and body for a request."""
        self.requests.append(f"{method} {path}")
        parts = [unquote(x) for x in urlsplit(path).path.strip("/").split("/")][1:]
        known: dict[tuple[str, str], Callable[..., Any]] = {
            ("POST", "ids"): lambda: self._new_id(json.loads(body)["name"]),
            ("GET", "brief"): lambda: {"jobs": [{k: j[k] for k in ("id", "state", "reason")} for j in self.jobs.values()]},
            ("POST", "jobs"): lambda *rest: self._cancel(rest[0]) if rest else self._submit(json.loads(body)["jobs"]),
            ("PUT", "jobs"): lambda job, _, *name: self._place(job, "/".join(name), body),
            ("GET", "jobs"): self._look,
        }
        try:
            found = known[method, parts[0]](*parts[1:])
        except FileExistsError as e:
            return 409, json.dumps({"error": "Conflict", "message": str(e)}).encode()
        except KeyError as e:
            return 404, json.dumps({"error": "NotFound", "message": str(e)}).encode()
        return 200, found if isinstance(found, bytes) else json.dumps(found).encode()

    def _new_id(self, name: str) -> Json:
        with self.lock:
            self.left -= 1
            return {"job": f"{name.lower()[:30]}-{self.left}"}

    def _at(self, job: str) -> Path:
        return self.folder / "machines" / job

    def _place(self, job: str, name: str, body: bytes) -> Json:
        target = self._at(job) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(body)
        return {}

    def _submit(self, bodies: list[Json]) -> Json:
        with self.lock:
            if there := [b["job"] for b in bodies if b["job"] in self.jobs]:
                raise FileExistsError(f"job {there[0]} exists already")
            for b in bodies:
                self.jobs[b["job"]] = {"id": b["job"], "state": "active", "reason": "", "spec": b["spec"], "process": None}
        for b in bodies:
            self._at(b["job"]).mkdir(parents=True, exist_ok=True)
            for name, mode in b["modes"].items():
                (self._at(b["job"]) / name).chmod(mode)
            threading.Thread(target=self._run, args=(b["job"],), daemon=True).start()
        return {"jobs": [{"job": b["job"], "number": 1, "tasks": 0} for b in bodies]}

    def _run(self, job: str) -> None:
        row, at = self.jobs[job], self._at(job)
        if not self.runs:
            return
        with (self.folder / f"{job}.err").open("wb") as err:
            row["process"] = subprocess.Popen(
                row["spec"]["command"],
                cwd=at,
                stdout=err,
                stderr=err,
                env={**os.environ, **row["spec"]["environment"]},
                start_new_session=True,
            )
        code = row["process"].wait()
        if row["state"] == "active":
            row.update(state="failed" if code else "succeeded", reason=f"it ended with exit code {code}" if code else "")

    def _cancel(self, job: str) -> Json:
        row = self.jobs[job]
        if row["state"] == "active":
            row.update(state="cancelled", reason="by its user")
            if row["process"] is not None:
                with suppress(ProcessLookupError):
                    os.killpg(row["process"].pid, signal.SIGKILL)
        return {}

    def _look(self, job: str, what: str = "", *name: str) -> Json | bytes:
        row = self.jobs[job]
        if what == "log":
            path = self.folder / f"{job}.err"
            return b"" if row.pop("told", False) or not path.exists() else (row.update(told=True), path.read_bytes())[1]
        if what == "outputs" and name:
            return self._at(job).joinpath(*name).read_bytes()
        if what == "outputs":
            at = self._at(job)
            matched = {x for pattern in row["spec"]["outputs"] if row["state"] == "succeeded" for x in at.glob(pattern)}
            files = {f for x in matched for f in (x.rglob("*") if x.is_dir() else [x]) if f.is_file()}
            return {"outputs": [{"path": str(f.relative_to(at))} for f in sorted(files)]}
        return {k: v for k, v in row.items() if k != "process"}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """It answers within the block."""
        played = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, answer = played.answer(self.command, self.path, body)
                what = f"{self.command} {urlsplit(self.path).path.split('/')[2]}"
                with played.lock:
                    loses = played.lost.get(what, 0) > 0
                    played.lost[what] = played.lost.get(what, 0) - loses
                if loses:
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                with suppress(BrokenPipeError):  # the client has gone
                    self.wfile.write(answer)

            do_GET = do_POST = do_PUT = _answer

            def log_message(self, format: str, *args: object) -> None:
                pass

            def address_string(self) -> str:
                return ""

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads, request_queue_size = True, 128

        self.socket.unlink(missing_ok=True)
        with Server(str(self.socket), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
            thread.start()
            try:
                yield
            finally:
                server.shutdown()
                self.socket.unlink(missing_ok=True)
