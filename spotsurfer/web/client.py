"""The controller as the command line sees it: JSON over a Unix socket, or over TCP with a token."""

from __future__ import annotations

import http.client
import json
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from spotsurfer.config.paths import client_socket, find_config
from spotsurfer.model import errors as e

Json = dict[str, Any]
T = TypeVar("T")
ANSWER_SECONDS = 60.0
CONNECT_SECONDS = 5.0
LONG_POLL_SECONDS = 20.0
PATIENCE_SECONDS = 120.0  # how long a command that follows a job tolerates an absent controller, as during a restart
PIECE_BYTES = 1 << 20
NAME_MAX = 100  # characters of a job's id or name; longer ones are refused
_KINDS = {kind.__name__: kind for kind in e.every_kind()}


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("controller")
        self._path = path

    def connect(self) -> None:
        """Connect to the socket. Raises Denied if this user may not use it, or may not enter its folder."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(str(self._path))
        except PermissionError:
            remedy = "run as its owner (sudo), or set SPOTSURFER_URL and SPOTSURFER_TOKEN"
            raise e.Denied(f"You may not use {self._path}: {remedy}.") from None


class Client:
    """One controller. Methods raise NoController, Denied, and the errors that the controller answers with.

    Each request has a connection of its own: threads may share a client, and an interrupted call leaves nothing behind.
    """

    def __init__(
        self, place: str, connection: Callable[[], http.client.HTTPConnection], token: str = "", config: Path | None = None
    ) -> None:
        """`place`: a URL or a socket's path, for people. `connection`: makes a new, unconnected one. `config`: its source."""
        self.place = place
        self.config = config.absolute() if config is not None else None
        self._read_from = f" ({config.absolute()} was read)" if config is not None else ""
        self._connection = connection
        self._prefix = urlsplit(place).path.rstrip("/") if "://" in place else ""
        self._headers = {"Connection": "close", **({"Authorization": f"Bearer {token}"} if token else {})}
        self.answer_seconds = ANSWER_SECONDS

    def get(self, path: str, **query: object) -> Json:
        """The JSON answer to a question."""
        return self._json("GET", path + _query(query))

    def post(self, path: str, body: Mapping[str, object] | None = None) -> Json:
        """Record a wish; returns the answer."""
        return self._json("POST", path, body)

    def put(self, path: str, body: Mapping[str, object]) -> Json:
        """Create something; returns the answer."""
        return self._json("PUT", path, body)

    def delete(self, path: str, **query: object) -> Json:
        """Remove something; returns the answer, empty if there is none."""
        with self._answer("DELETE", path + _query(query)) as answer:
            data = answer.read()
        return dict(json.loads(data)) if data else {}

    def upload(self, path: str, pieces: Iterator[bytes], size: int) -> None:
        """Send a file of exactly `size` bytes; raises InputMissing if the pieces are more or less."""
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        with self._answer("PUT", path, _exactly(pieces, size), headers):
            pass

    def data(self, path: str, **query: object) -> bytes:
        """A piece of a log."""
        with self._answer("GET", path + _query(query)) as answer:
            return answer.read()

    def framed(self, path: str, **query: object) -> tuple[list[tuple[Json, bytes]], Json]:
        """Lines of JSON, each but the last followed by the bytes that it announces; and that last one."""
        data, at, parts = self.data(path, **query), 0, list[tuple[Json, bytes]]()
        while True:
            begin = data.index(b"\n", at) + 1
            head: Json = json.loads(data[at:begin])
            if "bytes" not in head:
                return parts, head
            at = begin + head["bytes"]
            parts.append((head, data[begin:at]))

    def download(self, path: str) -> Iterator[bytes]:
        """A file in pieces."""
        with self._answer("GET", path) as answer:
            while piece := self._read(answer):
                yield piece

    def _read(self, answer: http.client.HTTPResponse) -> bytes:
        try:
            return answer.read(PIECE_BYTES)
        except (OSError, http.client.HTTPException):
            raise self._silent(reached=True) from None

    def _json(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Json:
        sent = None if body is None else _encoded(body)
        with self._answer(method, path, sent, {} if body is None else {"Content-Type": "application/json"}) as answer:
            found: Json = json.loads(answer.read())
            return found

    @contextmanager
    def _answer(
        self, method: str, path: str, body: bytes | Iterator[bytes] | None = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """The successful answer to a request, to be read within the block."""
        connection, reached = self._connection(), False
        try:
            connection.timeout = min(CONNECT_SECONDS, self.answer_seconds)
            connection.connect()
            reached = True
            connection.sock.settimeout(self.answer_seconds)
            with suppress(BrokenPipeError, ConnectionResetError):  # it may refuse an upload before it has read all of it
                connection.request(method, self._prefix + path, body, {**self._headers, **(headers or {})})
            answer = connection.getresponse()
            if answer.status >= 400:
                raise self._refusal(answer.status, answer.read())
            yield answer
        except ssl.SSLCertVerificationError as error:
            remedy = "set SPOTSURFER_CA to a file with the certificate of its authority"
            raise e.Denied(
                f"{self.place} shows a certificate that is not trusted ({error.verify_message}): {remedy}."
            ) from None
        except (OSError, http.client.HTTPException):
            raise self._silent(reached) from None
        finally:
            connection.close()

    def _silent(self, reached: bool) -> e.SpotsurferError:
        remedy = "start one with `spotsurfer serve`, or set SPOTSURFER_URL to one that runs elsewhere"
        return e.NoController(
            f"No controller answers at {self.place}{' any more' if reached else ''}{self._read_from}: {remedy}."
        )

    def _refusal(self, status: int, body: bytes) -> e.SpotsurferError:
        try:
            said = json.loads(body)
            return _KINDS.get(str(said["error"]), e.SpotsurferError)(str(said["message"]))
        except (ValueError, KeyError, TypeError):
            return e.SpotsurferError(f"{self.place} answers {status}, not as a controller does.")


def connect(config: Path | None = None) -> Client:
    """The controller of $SPOTSURFER_URL (a URL, or the path of a socket) and $SPOTSURFER_TOKEN, else the one on the socket
    that the configuration names. Raises UsageError.
    """
    url = os.environ.get("SPOTSURFER_URL")
    if not url:
        return on_socket(client_socket(config), find_config(config))
    if url.startswith("/"):
        return on_socket(Path(url))
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:  # a port that is no number, a bracket too many
        scheme, host, port = "", None, None
    if scheme not in ("http", "https") or not host:
        raise e.UsageError(f"SPOTSURFER_URL is {url!r}, expected a URL like http://127.0.0.1:8470 or the path of a socket.")
    token = os.environ.get("SPOTSURFER_TOKEN", "").strip()
    if scheme == "http":
        return Client(url, lambda: http.client.HTTPConnection(host, port), token)
    trusted = _trusted(os.environ.get("SPOTSURFER_CA", ""))
    return Client(url, lambda: http.client.HTTPSConnection(host, port, context=trusted), token)


def _trusted(file: str) -> ssl.SSLContext:
    """The system's authorities, or those in `file` alone."""
    try:
        return ssl.create_default_context(cafile=file or None)
    except (OSError, ssl.SSLError) as error:
        raise e.UsageError(f"SPOTSURFER_CA is {file!r}, expected a file with certificates: {error}.") from None


def on_socket(path: Path, config: Path | None = None) -> Client:
    """The controller that answers on a Unix socket, which `config` may have named."""
    return Client(str(path), lambda: _UnixConnection(path), config=config)


def job_path(job: str, *rest: str) -> str:
    """Address of a job or of something below it. Raises NotFound for text that can't name any job."""
    if job in ("", ".", "..") or "/" in job or len(job) > NAME_MAX or not job.isprintable():  # also refuses invalid UTF-8
        raise e.NotFound(f"There is no job {job!r}; `spotsurfer list` shows all.")
    return "/".join(["/v1/jobs", quote(job, safe=""), *(quote(part, safe="/") for part in rest)])


def patiently(call: Callable[[], T], tell: Callable[[str], None]) -> T:
    """Retries `call` while no controller answers, for at most PATIENCE_SECONDS; raises NoController then."""
    end, told = time.monotonic() + PATIENCE_SECONDS, False
    while True:
        try:
            return call()
        except e.NoController:
            if time.monotonic() > end:
                raise
            if not told:
                tell("The controller does not answer; jobs go on without it. Waiting for it …")
                told = True
            time.sleep(0.5)


def _encoded(body: Mapping[str, object]) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise e.UsageError(f"{error.object[error.start : error.end]!r} in what was given is no UTF-8 text.") from None


def _query(query: Mapping[str, object]) -> str:
    given = {
        key: value if isinstance(value, list) else str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in query.items()
        if value not in (None, [])
    }
    return f"?{urlencode(given, doseq=True, errors='surrogateescape')}" if given else ""


def _exactly(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    """The pieces, as long as they do not exceed the announced size; raises InputMissing if it does not match."""
    sent = 0
    for piece in pieces:
        sent += len(piece)
        if sent > size:
            break
        yield piece
    if sent != size:
        raise e.InputMissing("An input changed its size while it was uploaded: submit again when it is at rest.")
