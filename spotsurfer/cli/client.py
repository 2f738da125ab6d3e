"""The controller as the command line sees it: JSON over a Unix socket, or over TCP with a token."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

# The library loads its own command line with it, if it can, and that takes as long as all the rest of us.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
import httpx  # noqa: E402

from spotsurfer.model import errors as e  # noqa: E402
from spotsurfer.places import client_socket  # noqa: E402

Json = dict[str, Any]
T = TypeVar("T")
ANSWER_SECONDS = 60.0
CONNECT_SECONDS = 5.0
LONG_POLL_SECONDS = 20.0
PATIENCE_SECONDS = 120.0  # how long a command that follows a job bears a controller that is restarted
PIECE_BYTES = 1 << 20
_KINDS: dict[str, type[e.SpotsurferError]] = {
    kind.__name__: kind for kind in vars(e).values() if isinstance(kind, type) and issubclass(kind, e.SpotsurferError)
}


class Client:
    """One controller. Methods raise NoController, Denied, and whatever the controller answers with."""

    def __init__(self, http: httpx.Client, place: str) -> None:
        self._http = http
        self._place = place

    def close(self) -> None:
        """Hang up."""
        self._http.close()

    def get(self, path: str, **query: object) -> Json:
        """The JSON answer of a question."""
        return self._json("GET", path, params=_query(query))

    def post(self, path: str, body: Mapping[str, object] | None = None) -> Json:
        """Record a wish."""
        return self._json("POST", path, json=body)

    def put(self, path: str, body: Mapping[str, object]) -> Json:
        """Make something."""
        return self._json("PUT", path, json=body)

    def delete(self, path: str) -> None:
        """Remove something."""
        _check(self._send(lambda: self._http.request("DELETE", path), again=True))

    def upload(self, path: str, pieces: Iterator[bytes], size: int) -> None:
        """Send a file of exactly `size` bytes."""
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        _check(self._send(lambda: self._http.request("PUT", path, content=pieces, headers=headers)))

    def data(self, path: str, **query: object) -> bytes:
        """A piece of a log."""
        response = self._send(lambda: self._http.get(path, params=_query(query)), again=True)
        _check(response)
        return response.content

    def download(self, path: str) -> Iterator[bytes]:
        """A file in pieces."""
        try:
            with self._http.stream("GET", path) as response:
                if response.is_error:
                    response.read()
                _check(response)
                yield from response.iter_bytes(PIECE_BYTES)
        except httpx.TransportError as error:
            raise self._silent(error) from None

    def _json(self, method: str, path: str, **more: Any) -> Json:
        response = self._send(lambda: self._http.request(method, path, **more), again=method == "GET")
        _check(response)
        found: Json = response.json()
        return found

    def _send(self, call: Callable[[], httpx.Response], again: bool = False) -> httpx.Response:
        """`again`: harmless to repeat, where the controller closed a kept connection just as we used it."""
        try:
            try:
                return call()
            except (httpx.RemoteProtocolError, httpx.ReadError):
                if not again:
                    raise
                return call()
        except httpx.TransportError as error:
            raise self._silent(error) from None

    def _silent(self, error: Exception) -> e.SpotsurferError:
        path = Path(self._place)
        if path.is_socket() and not os.access(path, os.W_OK):
            return e.Denied(f"You may not use {path}: run as its owner (sudo), or set SPOTSURFER_URL and SPOTSURFER_TOKEN.")
        if isinstance(error, httpx.LocalProtocolError):
            return e.InputMissing(
                f"An input changed its size while it was uploaded ({error}): submit again when it is at rest."
            )
        remedy = "start one with `spotsurfer serve`, or set SPOTSURFER_URL to one that runs elsewhere"
        what = f"No controller answers at {self._place}"
        return e.NoController(f"{what}: {remedy}." if not isinstance(error, httpx.ReadError) else f"{what} any more: {remedy}.")


def connect(config: Path | None = None) -> Client:
    """The controller of $SPOTSURFER_URL and $SPOTSURFER_TOKEN, else the one whose socket the configuration names."""
    timeout = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
    url = os.environ.get("SPOTSURFER_URL")
    if url:
        if urlsplit(url).scheme not in ("http", "https"):
            raise e.UsageError(f"SPOTSURFER_URL is {url!r}, expected a URL like http://127.0.0.1:8470.")
        token = os.environ.get("SPOTSURFER_TOKEN", "").strip()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return Client(httpx.Client(base_url=url, headers=headers, timeout=timeout), url)
    socket = client_socket(config)
    transport = httpx.HTTPTransport(uds=str(socket), verify=False)
    return Client(
        httpx.Client(base_url="http://controller", transport=transport, timeout=timeout, trust_env=False), str(socket)
    )


def job_path(job: str, *rest: str) -> str:
    """Address of a job or of something below it."""
    return "/".join(["/v1/jobs", quote(job, safe=""), *(quote(part, safe="/") for part in rest)])


def patiently(call: Callable[[], T], tell: Callable[[str], None]) -> T:
    """`call`, again and again while no controller answers, for at most PATIENCE_SECONDS; raises NoController then."""
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


def _query(query: Mapping[str, object]) -> dict[str, str]:
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in query.items() if value is not None
    }


def _check(response: httpx.Response) -> None:
    if not response.is_error:
        return
    try:
        body = response.json()
        kind, message = _KINDS.get(str(body["error"]), e.SpotsurferError), str(body["message"])
    except (ValueError, KeyError, TypeError):
        raise e.SpotsurferError(f"{response.url} answers {response.status_code}, not as a controller does.") from None
    raise kind(message)
