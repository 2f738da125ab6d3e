"""The test cloud over HTTP, in a thread of the test. Each request and each answer is held to Google's document."""

from __future__ import annotations

import contextlib
import http.server
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from support.gce.cloud import ZONES, Cloud, Json, Refused
from support.gce.document import method, problems
from support.http_server import HttpServer, running

Handler = Callable[[Cloud, dict[str, str], dict[str, str], Json], Json]
METHODS: dict[str, Handler] = {
    "compute.instances.insert": lambda cloud, path, query, body: cloud.insert(path["zone"], body, query),
    "compute.instances.get": lambda cloud, path, _, __: cloud.get(path["zone"], path["instance"]),
    "compute.instances.delete": lambda cloud, path, _, __: cloud.delete(path["zone"], path["instance"]),
    "compute.instances.aggregatedList": lambda cloud, _, query, __: cloud.instances(query),
    "compute.zoneOperations.wait": lambda cloud, path, _, __: cloud.wait(path["zone"], path["operation"]),
    "compute.globalOperations.aggregatedList": lambda cloud, _, query, __: cloud.all_operations(query),
    "compute.machineTypes.list": lambda cloud, path, query, __: cloud.machine_types(path["zone"], query),
}


@dataclass
class TestGce:
    """A running test cloud. `calls`: ids of methods; `answers`: what the next calls get instead of an answer, in order.

    An answer is a refusal, or None for a connection that breaks after the work was done. `failures`: what this test cloud
    itself could not do, or was asked wrongly; a test that has some fails.
    """

    __test__ = False  # not a test class, whatever its name looks like

    endpoint: str
    cloud: Cloud
    calls: list[str] = field(default_factory=list)
    answers: dict[str, list[Refused | None]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    gce: TestGce

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def do_DELETE(self) -> None:
        self._serve()

    def _serve(self) -> None:
        url = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body: Json = json.loads(self.rfile.read(length) or b"{}") if length else {}
        try:
            answer = self._answered(url.path, dict(parse_qsl(url.query)), body)
        except Refused as e:
            error = {
                "code": e.status,
                "message": str(e),
                "errors": [{"message": str(e), "domain": "global", "reason": e.reason}],
            }
            self._reply(e.status, {"error": error})
            return
        except Exception as e:
            self.gce.failures.append(f"{self.command} {self.path}: {type(e).__name__}: {e}")
            raise
        if answer is None:
            self.close_connection = True
            return
        self._reply(200, answer)

    def _answered(self, path: str, query: dict[str, str], body: Json) -> Json | None:
        """None: the connection breaks."""
        found = method(self.command, path)
        assert found is not None, f"Google has no {self.command} {path}"
        called, names = found
        assert query.keys() <= called.query, f"{called.id} knows no {query.keys() - called.query}"
        self.gce.calls.append(called.id)
        planned = self.gce.answers.get(called.id, [])
        instead: Any = planned.pop(0) if planned else ...
        if isinstance(instead, Refused):
            raise instead
        if "zone" in names and names["zone"] not in ZONES:
            raise Refused(400, "invalid", f"Invalid value for field 'zone': '{names['zone']}'. Unknown zone.")
        if called.request and (wrong := problems(called.request, body)):
            raise Refused(400, "invalid", f"Invalid JSON payload received. {wrong[0]}")
        with contextlib.nullcontext() if called.id.endswith(".wait") else self.gce.cloud.lock:
            answer = METHODS[called.id](self.gce.cloud, names, query, body)
        wrong = problems(called.response, answer)
        assert not wrong, f"this test cloud answers to {called.id}: {wrong}"
        return None if instead is None else answer

    def _reply(self, status: int, answer: Json) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serve() -> Iterator[TestGce]:
    """A test cloud without VMs."""
    server = HttpServer(_Handler)
    gce = TestGce(server.url, Cloud())
    server.RequestHandlerClass = type("Handler", (_Handler,), {"gce": gce})
    with running(server):
        yield gce
    assert not gce.failures, gce.failures
