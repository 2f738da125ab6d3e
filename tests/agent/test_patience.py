"""A store that is cut off for a while is asked again for what a save sends and a restore fetches; a refusal stands."""

# pyright: reportOptionalMemberAccess=false
from __future__ import annotations

import http.server
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from spotsurfer_agent.control import process
from spotsurfer_agent.store.credentials import StoreAccess
from spotsurfer_agent.store.layers import PATIENCE_SECONDS, FenceClosed, Retry, RetryingStore, WriteFence
from spotsurfer_wire.messages import Want
from spotsurfer_wire.store.obstore import ObstoreStore, open_store
from spotsurfer_wire.store.port import StoreDenied, StoreError, StoreFull, StoreUnreachable
from support.agent_world import JOB, KEYS, World, commits, running
from support.dict_store import DictStore

KEY = f"jobs/{JOB}/chunks/x"


class Cut:
    """A store that can't be reached for so many seconds from its first use, and a clock to wait by."""

    def __init__(self, seconds: float, error: Callable[[str], StoreError] = StoreUnreachable) -> None:
        self.time, self.tries, self.store = 100.0, 0, DictStore()
        self._until, self._error = self.time + seconds, error
        self.store.before = self._before
        self.patient = RetryingStore(self.store, Retry(now=lambda: self.time, wait=self._wait))

    def _before(self, _verb: str, key: str) -> None:
        self.tries += 1
        if self.time < self._until:
            raise self._error(key)

    def _wait(self, seconds: float) -> None:
        self.time += seconds


def _calls(path: Path) -> dict[str, Callable[[RetryingStore], Any]]:
    (path / "file").write_bytes(b"1")
    return {
        "create": lambda s: s.create(KEY, b"1"),
        "create_later": lambda s: s.create_later(KEY, b"1"),
        "put": lambda s: s.put(KEY, b"1"),
        "put_file": lambda s: s.put_file(KEY, path / "file"),
        "get": lambda s: s.get(KEY),
        "get_range": lambda s: s.get_range(KEY, 0, 1),
        "get_file": lambda s: s.get_file(KEY, path / "got"),
        "list": lambda s: s.list(KEY),
    }


CALLS = ("create", "create_later", "put", "put_file", "get", "get_range", "get_file", "list")


@pytest.mark.parametrize("name", CALLS)
def test_every_call_outlasts_a_cut(tmp_path: Path, name: str) -> None:
    call, whole = _calls(tmp_path)[name], Cut(0)
    scene = Cut(20.0)
    assert call(scene.patient) == call(whole.patient)
    assert scene.store.objects == whole.store.objects
    assert 120.0 <= scene.time <= 122.0
    assert scene.tries < 20, "it does not hammer"


def test_patience_ends() -> None:
    scene = Cut(1e9)
    with pytest.raises(StoreUnreachable):
        scene.patient.get(KEY)
    assert PATIENCE_SECONDS <= scene.time - 100.0 <= PATIENCE_SECONDS + 2.0


@pytest.mark.parametrize("error", [StoreDenied, StoreFull, StoreError])
def test_a_refusal_is_heard_at_once(error: type[StoreError]) -> None:
    scene = Cut(1e9, error)
    with pytest.raises(error):
        scene.patient.create_later(KEY, b"1")
    assert (scene.tries, scene.time) == (1, 100.0)


def test_a_gate_that_is_shut_meanwhile_ends_it() -> None:
    scene = Cut(1e9)
    gate = WriteFence(scene.store)

    def wait(seconds: float) -> None:
        scene.time += seconds
        if scene.time > 105.0:
            gate.shut("another attempt owns the job")

    with pytest.raises(FenceClosed):
        RetryingStore(gate, Retry(now=lambda: scene.time, wait=wait)).put(KEY, b"1")
    assert scene.time < 108.0


# ---------------------------------------------------------------- a server that really is not there


class Server:
    """A store of one answer that can go away and come back at the same address."""

    def __init__(self) -> None:
        self.status, self.asked = 200, 0
        self._httpd: http.server.ThreadingHTTPServer | None = None
        self.port = 0
        self.comes()

    def comes(self) -> None:
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                outer.asked += 1
                self.send_response(outer.status)
                self.send_header("content-length", "0")
                self.send_header("etag", '"e"')
                self.end_headers()

            do_GET = do_PUT = do_POST = answer

            def log_message(self, format: str, *args: Any) -> None: ...

        self._httpd = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.port = self._httpd.server_port
        threading.Thread(target=self._httpd.serve_forever, args=(0.01,), daemon=True).start()

    def goes(self) -> None:
        if self._httpd is not None:
            self._httpd.shutdown()
            self._httpd.server_close()
            self._httpd = None

    def store(self) -> ObstoreStore:
        keys = {"access_key_id": "a", "secret_access_key": "b", "region": "us-east-1", "virtual_hosted_style_request": "false"}
        return open_store("s3://store", {"endpoint": f"http://127.0.0.1:{self.port}", "allow_http": "true", **keys})


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.goes()


def test_a_server_that_comes_back_is_found(server: Server) -> None:
    store = server.store()
    server.goes()
    back = threading.Timer(3.0, server.comes)
    back.start()
    began = time.monotonic()
    assert RetryingStore(store).create_later(KEY, b"1")
    assert time.monotonic() - began >= 2.5
    back.join()


@pytest.mark.alone
def test_who_judges_a_lease_hears_of_it_at_once(server: Server) -> None:
    store = server.store()
    server.goes()
    began = time.monotonic()
    with pytest.raises(StoreUnreachable):
        store.get(KEY)
    assert time.monotonic() - began < 5.0


@pytest.mark.parametrize(
    ("status", "passes"), [(500, True), (503, True), (429, True), (400, False), (403, False), (404, False)]
)
def test_what_an_answer_means(server: Server, status: int, passes: bool) -> None:
    server.status, scene = status, Cut(0)
    patient = RetryingStore(server.store(), Retry(1.0, lambda: scene.time, lambda s: setattr(scene, "time", scene.time + s)))
    with pytest.raises(StoreError) as refusal:
        patient.create_later(KEY, b"1")
    assert isinstance(refusal.value, StoreUnreachable) is passes
    assert (server.asked == 1) is not passes


def test_a_precondition_is_an_answer(server: Server) -> None:
    server.status = 412
    assert not RetryingStore(server.store()).create_later(KEY, b"1")
    assert server.asked == 1


# ---------------------------------------------------------------- the agent


@pytest.mark.parametrize("verb", ["intents", "log"])
def test_a_save_of_the_agent_outlasts_a_cut_around_it(tmp_path: Path, verb: str) -> None:
    """Its intent and the job's output, which the engine does not send: the head log is asked as ever."""
    world = World(tmp_path)
    machine = running(world)
    failed = Counter[str]()

    def cut(what: str, key: str) -> None:
        if what != "get" and f"/{verb}/" in key and failed[verb] < 5:
            failed[verb] += 1
            raise StoreUnreachable(key)

    world.turn(5)
    world.store.before = cut
    world.want(1, Want.DRAIN, 1)
    world.until(lambda: machine.agent.over)
    assert failed[verb] == 5
    assert len(commits(world)) == 1
    assert commits(world)[0].final


def test_the_engine_is_given_a_patient_store_and_the_lease_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def engine(_base: Path, _job: str, store: Any, *_: object) -> Any:
        given.append(store)
        return SimpleNamespace(world=SimpleNamespace(images=SimpleNamespace()), keeps=SimpleNamespace())

    monkeypatch.setattr(process, "JobEngine", engine)
    monkeypatch.setattr(process.Tools, "find", lambda *_: None)
    world = World(tmp_path)
    process._make_engine(tmp_path, world.config(1), StoreAccess("memory:///"), WriteFence(world.store), KEYS, False)
    assert [type(x) for x in given] == [RetryingStore]
    agent = running(world).agent
    assert isinstance(agent.heads._store, WriteFence)
    assert agent.mailbox._store is world.store
