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
from urllib.parse import parse_qs, unquote, urlsplit

from spotsurfer_agent.files.home_folder import changes
from spotsurfer_wire import json_codec
from spotsurfer_wire.home_tree import FOLDER, HomeTree

Json = dict[str, Any]


@dataclass
class Played:
    """`lost`: answers still to be lost, by method and first part of the path. `runs`: whether jobs run, or wait for ever."""

    folder: Path
    runs: bool = True
    lost: dict[str, int] = field(default_factory=dict)
    jobs: dict[str, Json] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
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
            ("POST", "homes"): lambda _: {"lacks": self._lacked(json.loads(body)["digests"]), "shared": False},
            ("PUT", "homes"): lambda _: self.blobs.update({parse_qs(urlsplit(path).query)["sha256"][0]: body}) or {},
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

    def _lacked(self, digests: list[str]) -> list[str]:
        return [x for x in digests if x not in self.blobs]

    def _at(self, job: str) -> Path:
        return self.folder / "machines" / job

    def _submit(self, bodies: list[Json]) -> Json:
        with self.lock:
            if there := [b["job"] for b in bodies if b["job"] in self.jobs]:
                raise FileExistsError(f"job {there[0]} exists already")
            for b in bodies:
                self.jobs[b["job"]] = {"id": b["job"], "state": "active", "reason": "", "spec": b["spec"], "process": None}
        for b in bodies:
            self._lay_out(b["spec"], self._at(b["job"]))
            threading.Thread(target=self._run, args=(b["job"],), daemon=True).start()
        return {"jobs": [{"job": b["job"], "number": 1, "tasks": 0} for b in bodies]}

    def _lay_out(self, spec: Json, at: Path) -> None:
        at.mkdir(parents=True)
        for e in self._tree(spec).entries:
            if e.kind == FOLDER:
                (at / e.path).mkdir()
            else:
                (at / e.path).write_bytes(self.blobs[e.sha256])
                os.utime(at / e.path, ns=(e.mtime_ns, e.mtime_ns))
                (at / e.path).chmod(e.mode)

    def _tree(self, spec: Json) -> HomeTree:
        return json_codec.decode(HomeTree, self.blobs[spec["home_tree"]])

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
        row, at = self.jobs[job], self._at(job)
        if what == "log":
            return self._log(self.folder / f"{job}.err", urlsplit(self.requests[-1]).query)
        if what == "home":
            found = changes(self._tree(row["spec"]), at, row["spec"]["home_exclude"], set(), "/nothing")
            if not name:
                return json_codec.encode(found)
            return next((at / c.now.path).read_bytes() for c in found.changes if c.now.sha256 == name[0])
        return {k: v for k, v in row.items() if k != "process"} | {"attempts": []}

    def _log(self, path: Path, query: str) -> bytes:
        at = int((parse_qs(query).get("err") or ["0"])[0])
        data = path.read_bytes()[at:] if path.exists() else b""
        head = json.dumps({"stream": "err", "bytes": len(data)}).encode() + b"\n" + data if data else b""
        return head + json.dumps({"next": {"out": 0, "err": at + len(data), "times": 0}}).encode() + b"\n"

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
