"""The test cloud over HTTP, in threads of the test. Each request and each answer is held to Google's documents."""

from __future__ import annotations

import contextlib
import http.server
import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit

from support.gce import key_file, permissions, storage
from support.gce.cloud import PROJECT, ZONES, Cloud, Json
from support.gce.document import Method, method, problems
from support.gce.errors import Refused
from support.gce.identity import Identity, Who
from support.http_server import HttpServer, running

CONTROLLER = f"spotsurfer-controller@{PROJECT}.iam.gserviceaccount.com"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a documented method."""

    who: Who
    path: dict[str, str]
    query: dict[str, str]
    body: Json


Handler = Callable[["TestGce", Call], Json]
METHODS: dict[str, Handler] = {
    "compute.instances.insert": lambda gce, c: gce.cloud.insert(c.path["zone"], c.body, c.query),
    "compute.instances.get": lambda gce, c: gce.cloud.get(c.path["zone"], c.path["instance"]),
    "compute.instances.delete": lambda gce, c: gce.cloud.delete(c.path["zone"], c.path["instance"]),
    "compute.instances.aggregatedList": lambda gce, c: gce.cloud.instances(c.query),
    "compute.zoneOperations.wait": lambda gce, c: gce.cloud.wait(c.path["zone"], c.path["operation"]),
    "compute.globalOperations.aggregatedList": lambda gce, c: gce.cloud.all_operations(c.query),
    "compute.machineTypes.list": lambda gce, c: gce.cloud.machine_types(c.path["zone"], c.query),
    "compute.machineTypes.aggregatedList": lambda gce, c: gce.cloud.all_machine_types(c.query),
    "cloudbilling.services.skus.list": lambda gce, c: gce.cloud.catalogue(c.path["parent"], c.query),
    "iamcredentials.projects.serviceAccounts.generateAccessToken": lambda gce, c: gce.identity.impersonated(
        c.who, c.path["name"].rpartition("/")[2], c.body
    ),
    "pubsub.projects.subscriptions.pull": lambda gce, c: gce.cloud.events.pull(int(c.body["maxMessages"])),
    "pubsub.projects.subscriptions.acknowledge": lambda gce, c: gce.cloud.events.acknowledge(c.body["ackIds"]),
    "compute.advice.capacity": lambda gce, c: gce.cloud.advice(c.body),
    "compute.subnetworks.testIamPermissions": lambda gce, c: permissions.tested(
        gce.identity, c.who, c.body, permissions.subnet(c.path, c.path["resource"]), permissions.SUBNET
    ),
    "pubsub.projects.subscriptions.testIamPermissions": lambda gce, c: permissions.tested(
        gce.identity, c.who, c.body, c.path["resource"], permissions.SUBSCRIPTION
    ),
    "iam.projects.serviceAccounts.testIamPermissions": lambda gce, c: permissions.tested(
        gce.identity, c.who, c.body, c.path["resource"], permissions.ACCOUNT
    ),
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
    identity: Identity
    bucket: storage.Bucket
    calls: list[str] = field(default_factory=list)
    answers: dict[str, list[Refused | None]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def key_file(self, path: Path, account: str = CONTROLLER) -> Path:
        """The key of an account here."""
        return key_file.write(path, account, PROJECT, self.endpoint)

    def options(self, account: str = CONTROLLER) -> dict[str, str]:
        """Options with which obstore reaches the bucket for an account."""
        return {"base_url": self.endpoint, "allow_http": "true", "bearer_token": self.identity.issue(account)}


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    gce: TestGce

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:  # whoever asks hung up: Google keeps no half of an object
            self.close_connection = True
            return
        url = urlsplit(self.path)
        try:
            if url.path in ("/token", "/v1/token"):
                self._token(url.path, dict(parse_qsl(body.decode())))
            elif found := method(self.command, url.path):
                self._documented(*found, dict(parse_qsl(url.query)), body)
            else:
                self._storage(url.path, url.query, body)
        except Refused as e:
            reason = {"message": str(e), "domain": "global", "reason": e.reason}
            error = {"code": e.status, "message": str(e), "errors": [reason]}
            self._reply(e.status, {"error": error})
        except ConnectionError:
            raise
        except Exception as e:
            self.gce.failures.append(f"{self.command} {self.path}: {type(e).__name__}: {e}")
            raise

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def _token(self, path: str, form: dict[str, str]) -> None:
        """For a key file's assertion, and from one token to a lesser one; both speak OAuth's forms."""
        if path == "/token":
            who = self.gce.identity.who(f"Bearer {form['assertion']}")
            token, seconds = self.gce.identity.issue(who.account), int(self.gce.identity.token_seconds)
            self._reply(200, {"access_token": token, "expires_in": seconds, "token_type": "Bearer"})
            return
        named = {_camel(name): value for name, value in form.items()}
        wrong = problems("sts.v1", "GoogleIdentityStsV1ExchangeTokenRequest", named)
        assert not wrong, wrong
        self.gce.calls.append("sts.token")
        if planned := self.gce.answers.get("sts.token"):
            refusal = planned.pop(0)
            assert refusal is not None
            self._reply(refusal.status, {"error": refusal.reason, "error_description": str(refusal)})
            return
        self._reply(200, self.gce.identity.exchanged({**named, "options": unquote(named["options"])}))

    def _documented(self, called: Method, names: dict[str, str], query: dict[str, str], data: bytes) -> None:
        assert query.keys() <= called.query, f"{called.id} knows no {query.keys() - called.query}"
        body: Json = json.loads(data) if data else {}
        gce = self.gce
        gce.calls.append(called.id)
        who = gce.identity.who(self.headers.get("Authorization"))
        planned = gce.answers.get(called.id, [])
        instead: Any = planned.pop(0) if planned else ...
        if isinstance(instead, Refused):
            raise instead
        if "zone" in names and names["zone"] not in ZONES:
            raise Refused(400, "invalid", f"Invalid value for field 'zone': '{names['zone']}'. Unknown zone.")
        if called.request and (wrong := problems(called.api, called.request, body)):
            raise Refused(400, "invalid", f"Invalid JSON payload received. {wrong[0]}")
        for permission, resource, kind in permissions.needed(called.id, names, body):
            gce.identity.need(who, permission, resource, kind)
        with contextlib.nullcontext() if called.id.endswith(".wait") else gce.cloud.lock:
            answer = METHODS[called.id](gce, Call(who, names, query, body))
        wrong = problems(called.api, called.response, answer)
        assert not wrong, f"this test cloud answers to {called.id}: {wrong}"
        if instead is None:
            self.close_connection = True
            return
        self._reply(200, answer)

    def _storage(self, path: str, query: str, body: bytes) -> None:
        bucket, _, key = unquote(path).lstrip("/").partition("/")
        who = self.gce.identity.who(self.headers.get("Authorization"))
        if bucket != storage.BUCKET:
            self._send(404, storage.error("NoSuchBucket", "The specified bucket does not exist."), {})
            return
        asked = {k: v[0] for k, v in parse_qs(query, keep_blank_values=True).items()}
        headers = {k.lower(): v for k, v in self.headers.items()}
        answer = self.gce.bucket.answer(storage.Request(self.command, key, asked, headers, body, who))
        self._send(answer.status, answer.body, {"Content-Type": "application/xml", **answer.headers})

    def _reply(self, status: int, answer: Json) -> None:
        self._send(status, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(x.capitalize() for x in others)


class _SocketServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """For machines, which reach it over their own link."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def handle_error(self, request: object, client_address: object) -> None:
        """A machine that ends breaks its connections."""


@contextmanager
def serve(cloud: Cloud | None = None, path: Path | None = None) -> Iterator[TestGce]:
    """A test cloud without VMs. `path`: of a Unix socket at which it answers, too."""
    server, identity = HttpServer(_Handler), Identity()
    gce = TestGce(server.url, cloud or Cloud(), identity, storage.Bucket(identity))
    server.RequestHandlerClass = type("Handler", (_Handler,), {"gce": gce})
    with contextlib.ExitStack() as stack:
        stack.enter_context(running(server))
        if path is not None:
            nagle = type("Handler", (_Handler,), {"gce": gce, "disable_nagle_algorithm": False})
            beside = stack.enter_context(_SocketServer(str(path), nagle))
            threading.Thread(target=beside.serve_forever, args=(0.05,), daemon=True).start()
            stack.callback(beside.shutdown)
        yield gce
    assert not gce.failures, gce.failures
