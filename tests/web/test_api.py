"""The API over real sockets: who may enter, what errors look like, uploads, long polls, the OpenAPI page."""

from __future__ import annotations

import json
import os
import random
import socket
import stat
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest
from spotsurfer_wire.log_pieces import Row
from support.api import api
from support.fake_service import FakeService
from support.fuzz import mutated
from support.tree import ROOT

from spotsurfer.model import errors as e
from spotsurfer.model.charges import ChargeKind, ChargeLine
from spotsurfer.model.job import JobId, JobState
from spotsurfer.web import guard
from spotsurfer.web.app import load_token, make_app
from spotsurfer.web.error_responses import STATUS
from spotsurfer.web.server import tcp_socket, unix_socket

TOKEN = "a-token-of-some-length"
SPEC = {"name": "job", "command": ["true"]}
WIRE = ROOT / "tests" / "web" / "openapi.json"


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="ss-") as path:  # short: a socket's path has 107 bytes
        yield Path(path)


@pytest.fixture
def unix(service: FakeService, folder: Path) -> Iterator[httpx.Client]:
    transport = httpx.HTTPTransport(uds=str(folder / "api.sock"))
    with api(service, folder / "api.sock"), httpx.Client(transport=transport, base_url="http://x") as client:
        yield client


@pytest.fixture
def tcp(service: FakeService, folder: Path) -> Iterator[httpx.Client]:
    listener = tcp_socket("127.0.0.1:0")
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with api(service, folder / "api.sock", (listener, TOKEN)), httpx.Client(base_url=url, trust_env=False) as client:
        yield client


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    "headers", [{}, bearer("wrong"), {"Authorization": "Bearer"}, bearer(TOKEN + "x"), {"Authorization": TOKEN}]
)
def test_without_the_token_nobody_enters(tcp: httpx.Client, headers: dict[str, str]) -> None:
    for path in ("/v1/jobs", "/v1/openapi.json", "/nothing"):
        answer = tcp.get(path, headers=headers)
        assert answer.status_code == 401
        assert answer.json()["error"] == "Denied"
        assert answer.json()["exit_code"] == 12
        assert "SPOTSURFER_TOKEN" in answer.json()["message"]


def test_with_the_token_all_is_open(tcp: httpx.Client) -> None:
    assert tcp.get("/v1/jobs", headers=bearer(TOKEN)).json() == {"jobs": []}


def test_a_stranger_may_not_bring_a_command_for_the_controllers_host(tcp: httpx.Client, service: FakeService) -> None:
    answer = tcp.put("/v1/jobs/job-1", json={"spec": SPEC | {"on_end": ["id"]}}, headers=bearer(TOKEN))
    assert answer.status_code == 403
    assert answer.json()["error"] == "Denied"
    assert "allow_remote" in answer.json()["message"]
    assert service.statuses == {}
    assert tcp.put("/v1/jobs/job-1", json={"spec": SPEC}, headers=bearer(TOKEN)).status_code == 201


def test_on_the_socket_a_command_is_allowed(unix: httpx.Client, service: FakeService) -> None:
    assert unix.put("/v1/jobs/job-1", json={"spec": SPEC | {"on_end": ["id", "-u"]}}).status_code == 201
    assert service.statuses["job-1"].job.spec.on_end == ("id", "-u")


# ---------------------------------------------------------------- secrets

VALUE = "Y2FuYXJ5LTVkMWI4Yw=="  # what travels; "canary-5d1b8c" is what it holds
SECRET = {"spec": SPEC | {"secrets": {"TOKEN": {"from": "env:TOKEN", "as": "environment"}}}, "secrets": {"TOKEN": VALUE}}
CLOUD = {"spec": SPEC | {"secrets": {"DB": {"from": "gcp-secret:db", "as": "file"}}}}


def test_a_secret_comes_in_and_never_goes_out(unix: httpx.Client, service: FakeService) -> None:
    made = unix.put("/v1/jobs/job-1", json=SECRET)
    assert made.status_code == 201, made.text
    assert service.secrets["job-1"] == {"TOKEN": b"canary-5d1b8c"}
    assert made.json()["spec"]["secrets"] == SECRET["spec"]["secrets"]
    for text in (made.text, unix.get("/v1/jobs/job-1").text, unix.get("/v1/jobs").text):
        assert "canary" not in text and VALUE not in text


@pytest.mark.parametrize(
    "change",
    [
        {"secrets": {"TOKEN": VALUE + "!"}},
        {"secrets": {"TOKEN": [VALUE]}},
        {"secrets": [VALUE]},
        {"secrets": VALUE},
        {"spec": SPEC | {"secrets": {"TOKEN": {"from": "env:TOKEN", "as": "environment"}}, "cpus": "many"}},
        {"spec": SPEC | {"secrets": {"TOKEN": {"from": "env:TOKEN", "value": "x"}}}},
        {"more": 1},
    ],
)
def test_what_is_wrong_with_a_submission_is_said_without_its_secrets(
    unix: httpx.Client, capfd: pytest.CaptureFixture[str], change: dict[str, object]
) -> None:
    answer = unix.put("/v1/jobs/job-1", json=SECRET | change)
    assert answer.status_code == 422
    said = answer.text + "".join(capfd.readouterr())
    assert "canary" not in said and VALUE not in said


def test_a_failure_inside_does_not_log_them(
    unix: httpx.Client, service: FakeService, capfd: pytest.CaptureFixture[str]
) -> None:
    service.fail = RuntimeError("a bug")  # type: ignore[assignment]
    assert unix.put("/v1/jobs/job-1", json=SECRET).status_code == 500
    said = "".join(capfd.readouterr())
    assert "a bug" in said
    assert "canary" not in said and VALUE not in said


def test_a_stranger_may_not_have_the_controller_fetch_secrets(tcp: httpx.Client, service: FakeService) -> None:
    answer = tcp.put("/v1/jobs/job-1", json=CLOUD, headers=bearer(TOKEN))
    assert answer.status_code == 403
    assert "[secrets] allow_remote" in answer.json()["message"]
    assert tcp.put("/v1/jobs/job-1", json=SECRET, headers=bearer(TOKEN)).status_code == 201


def test_on_the_socket_it_fetches_them(unix: httpx.Client) -> None:
    assert unix.put("/v1/jobs/job-1", json=CLOUD).status_code == 201


def test_every_error_has_a_status_and_one_body(unix: httpx.Client, service: FakeService) -> None:
    kinds = [k for k in vars(e).values() if isinstance(k, type) and issubclass(k, e.SpotsurferError)]
    assert len(kinds) > 20
    for kind in kinds:
        service.fail = kind("because")
        answer = unix.get("/v1/jobs")
        assert answer.status_code == next(STATUS[k] for k in kind.__mro__ if k in STATUS)
        assert answer.json() == {"error": kind.__name__, "exit_code": kind.exit_code, "message": "because"}


def test_a_bug_shows_no_inside(unix: httpx.Client, service: FakeService) -> None:
    service.fail = RuntimeError("secret")
    answer = unix.get("/v1/jobs")
    assert answer.status_code == 500
    assert answer.json()["exit_code"] == 1
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("spec", "culprit"),
    [
        ({"name": "job"}, "command"),
        (SPEC | {"comand": []}, "comand"),
        (SPEC | {"cpus": "many"}, "cpus"),
        (SPEC | {"cpus": 0}, "cpu"),
        (SPEC | {"outputs": ["../../etc/*"]}, "outputs"),
        (SPEC | {"folder": "/etc"}, "folder"),
        (SPEC | {"environment": {"A=B": "c"}}, "A=B"),
        (SPEC | {"name": "a/b"}, "name"),
        (SPEC | {"market": "sport"}, "market"),
        (SPEC | {"user": "root; id"}, "user"),
    ],
)
def test_a_wrong_specification_is_refused_by_name(
    unix: httpx.Client, service: FakeService, spec: dict[str, object], culprit: str
) -> None:
    answer = unix.put("/v1/jobs/job-1", json={"spec": spec})
    assert answer.status_code == 422
    assert answer.json()["exit_code"] in (2, 3)
    assert culprit in answer.json()["message"]
    assert service.statuses == {}


@pytest.mark.parametrize("job", ["..", "A", "a.b", "x" * 60])
def test_an_id_that_could_leave_its_folder_is_refused(unix: httpx.Client, service: FakeService, job: str) -> None:
    answer = unix.put(f"/v1/jobs/{job.replace('.', '%2e')}/inputs/x", content=b"1")
    assert answer.status_code in (404, 422)
    assert service.uploads == {}


def test_an_input_arrives_byte_for_byte(unix: httpx.Client, service: FakeService) -> None:
    body = os.urandom(3_000_001)
    pieces = (body[i : i + 100_000] for i in range(0, len(body), 100_000))
    headers = {"Content-Length": str(len(body))}
    assert unix.put("/v1/jobs/job-1/inputs/a/b%20c.fq", content=pieces, headers=headers).status_code == 204
    assert service.uploads["job-1"]["a/b c.fq"] == body


def test_an_upload_must_say_its_length(unix: httpx.Client, service: FakeService) -> None:
    answer = unix.put("/v1/jobs/job-1/inputs/x", content=(x for x in [b"1"]))
    assert answer.status_code == 400
    assert "Content-Length" in answer.json()["message"]
    assert service.uploads == {}


def test_a_body_of_unknown_length_is_not_read(unix: httpx.Client) -> None:
    """In pieces, it passed the limit that an announced length has."""
    answer = unix.post("/v1/jobs", content=(b" " * 100_000 for _ in range(100)))
    assert answer.status_code == 411
    assert "Content-Length" in answer.json()["message"]
    assert unix.post("/v1/jobs", content=b" " * (9 << 20)).status_code == 413


def test_an_upload_that_breaks_off_is_not_stored(unix: httpx.Client, service: FakeService, folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(folder / "api.sock"))
        raw.sendall(b"PUT /v1/jobs/job-1/inputs/x HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        assert "job-1" not in service.uploads
        time.sleep(0.05)
    assert unix.get("/v1/info").status_code == 200


@pytest.mark.parametrize("request_line", ["PUT /v1/jobs/job-1/inputs/x", "POST /v1/ids"])
def test_a_sender_that_falls_silent_is_given_up(
    folder: Path, unix: httpx.Client, request_line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It kept a thread of the server for as long as it liked, and forty of them kept all."""
    monkeypatch.setattr(guard, "SILENT_SECONDS", 0.3)
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(10)
        raw.connect(str(folder / "api.sock"))
        head = f"{request_line} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
        raw.sendall(head.encode() + b'{"na')
        assert raw.recv(4096).startswith(b"HTTP/1.1 408 ")


def test_the_controller_tells_its_limits_and_what_is_in_use(unix: httpx.Client) -> None:
    info = unix.get("/v1/info").json()
    assert (info["gpus"], info["gpus_max"], info["hourly_max_usd_micros"]) == (0, None, 10_000_000)
    assert (info["instance_types"], info["front_ports_max"]) == (["m6i.*"], 500)


def test_a_body_of_json_has_a_limit(unix: httpx.Client) -> None:
    assert unix.put("/v1/jobs/job-1", content=b" " * (9 << 20)).status_code == 413
    assert unix.put("/v1/homes/files/" + "0" * 64 + "?home=/h", content=b" " * (9 << 20)).status_code != 413, (
        "a file may be large"
    )


@pytest.mark.alone
def test_the_timeline_waits_for_news(unix: httpx.Client, service: FakeService) -> None:
    service.say(None, "controller", "first")
    assert [m["text"] for m in unix.get("/v1/timeline").json()["moments"]] == ["first"]
    threading.Timer(0.5, service.say, (None, "controller", "second")).start()
    begin = time.monotonic()
    answer = unix.get("/v1/timeline", params={"after": 1, "wait": 10}).json()
    assert [m["number"] for m in answer["moments"]] == [2]
    assert answer["next"] == 2
    assert 0.3 < time.monotonic() - begin < 5


@pytest.mark.alone
def test_the_end_of_the_server_ends_a_long_poll(service: FakeService, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, looked, look = list[int](), threading.Event(), service.timeline

    monkeypatch.setattr(service, "timeline", lambda *asked: looked.set() or look(*asked))

    def poll() -> None:
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(folder / "s")), base_url="http://x") as client:
            answers.append(client.get("/v1/timeline", params={"wait": 30}).status_code)

    thread = threading.Thread(target=poll)
    with api(service, folder / "s"):
        thread.start()
        assert looked.wait(10)
        begin = time.monotonic()
    thread.join(10)
    assert time.monotonic() - begin < 3
    assert answers == [200]


def test_the_log_comes_in_pieces(unix: httpx.Client, service: FakeService) -> None:
    unix.put("/v1/jobs/job-1", json={"spec": SPEC})
    service.logs["job-1", "out"] = b"one\ntwo\n"
    answer = unix.get("/v1/jobs/job/log/out", params={"offset": 4, "limit": 2})
    assert answer.content == b"tw"
    assert answer.headers["X-Next-Offset"] == "6"
    assert unix.get("/v1/jobs/job/log/other").status_code == 422


def test_the_log_in_order_is_framed(unix: httpx.Client, service: FakeService) -> None:
    unix.put("/v1/jobs/job-1", json={"spec": SPEC})
    service.logs["job-1", "out"], service.logs["job-1", "err"] = b"one\ntwo\n", b"{}\n"
    service.logs["job-1", "times"] = Row(1000, 4, 0).packed() + Row(2500, 4, 3).packed() + Row(2500, 8, 3).packed()
    answer = unix.get("/v1/jobs/job/log").content
    lines = [b'{"stream": "%s", "bytes": %d, "seconds": %s, "recorded": true}\n' % x for x in (
        (b"out", 4, b"1.0"), (b"err", 3, b"2.5"), (b"out", 4, b"2.5")
    )]  # fmt: skip
    last = b'{"next": {"out": 8, "err": 3, "times": 72}, "ended": false, "earlier": []}\n'
    assert answer == lines[0] + b"one\n" + lines[1] + b"{}\n" + lines[2] + b"two\n" + last
    rest = {"out": 8, "err": 3, "times": 72}
    assert unix.get("/v1/jobs/job/log", params=rest).content == last
    assert b"one" not in unix.get("/v1/jobs/job/log", params={"tail": 2, "only": "out", "out": 4}).content
    for wrong in ({"since": "nan"}, {"tail": -1}, {"out": -1}, {"only": "times"}):
        assert unix.get("/v1/jobs/job/log", params=wrong).status_code == 422


def test_who_waits_for_the_log_hears_of_the_end(unix: httpx.Client, service: FakeService) -> None:
    unix.put("/v1/jobs/job-1", json={"spec": SPEC})
    service.end("job-1", JobState.SUCCEEDED, 0)
    begin = time.monotonic()
    assert b'"ended": true' in unix.get("/v1/jobs/job/log", params={"wait": 9}).content
    assert time.monotonic() - begin < 5


def test_an_absent_output_is_a_404_and_not_a_torn_answer(unix: httpx.Client, service: FakeService) -> None:
    unix.put("/v1/jobs/job-1", json={"spec": SPEC})
    assert unix.get("/v1/jobs/job-1/outputs").json()["exit_code"] == 14
    service.results["job-1"] = {"a/b.txt": b"abcdef"}
    assert unix.get("/v1/jobs/job-1/outputs/a/b.txt").content == b"abcdef"
    assert unix.get("/v1/jobs/job-1/outputs/nothing").status_code == 404


def test_the_socket_is_private_and_replaces_a_stale_one(folder: Path) -> None:
    path = folder / "api.sock"
    first = unix_socket(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(e.ControllerRunning, match="another data_dir"):
        unix_socket(path)
    first.close()  # the file stays, as after kill -9
    assert path.is_socket()
    unix_socket(path).close()
    assert sorted(p.name for p in folder.iterdir()) == ["api.sock"]


def test_a_socket_that_can_not_be_made_is_a_wrong_setting(folder: Path) -> None:
    with pytest.raises(e.ConfigError, match="too long"):
        unix_socket(folder / ("x" * 120))
    with pytest.raises(e.ConfigError, match="absent"):
        unix_socket(folder / "absent" / "api.sock")


def test_a_socket_may_have_the_longest_path_that_the_kernel_takes(folder: Path) -> None:
    path = folder / "x".ljust(107 - len(str(folder)) - 1, "x")
    with unix_socket(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    with pytest.raises(e.ConfigError, match="too long"):
        unix_socket(path.with_name(path.name + "x"))


def test_the_token_is_made_once_and_must_be_private(folder: Path) -> None:
    path = folder / "token"
    token = load_token(path)
    assert len(token) >= 32
    assert load_token(path) == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with pytest.raises(e.ConfigError, match="chmod 600"):
        load_token(path)
    path.chmod(0o600)
    path.write_text("short")
    with pytest.raises(e.ConfigError, match="16 characters"):
        load_token(path)


def test_the_wire_is_what_it_was() -> None:
    """Nouns are answered as they are, so a change of one may change the wire. If so: `make docs`, and look at the diff."""
    page = make_app(FakeService()).openapi()
    assert page == json.loads(WIRE.read_text())


def test_openapi_describes_every_answer() -> None:
    page = make_app(FakeService()).openapi()
    operations = [op for path in page["paths"].values() for op in path.values()]
    assert len(operations) >= 19
    assert len({op["operationId"] for op in operations}) == len(operations)
    for op in operations:
        good = [r for code, r in op["responses"].items() if code.startswith("2")]
        assert good
        assert op["description"]
        assert op["tags"]
        assert op["responses"]["4XX"]["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorBody")
    assert "HTTPValidationError" not in json.dumps(page["paths"])
    assert set(page["paths"]["/v1/jobs/{job}"]) == {"get", "put"}


# ---------------------------------------------------------------- hostile input


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("deadline_seconds", "1e300"),
        ("deadline_seconds", "1e999"),
        ("deadline_seconds", "NaN"),
        ("idle_seconds", "1e300"),
        ("idle_seconds", "-1"),
        ("checkpoint_interval_seconds", "Infinity"),
        ("idle_cpu", "NaN"),
        ("memory_bytes", "1" + "0" * 30),
        ("budget_usd_micros", "9223372036854775807"),
        ("priority", "9" * 5000),
        ("tags", '{"a": "\\ud800"}'),
        ("environment", '{"A": "\\udcf6"}'),
        ("command", '["true", "\\ud800"]'),
        ("outputs", '["\\udcf6"]'),
        ("name", '"\\ud800"'),
        ("size_parameters", '{"x": NaN}'),
        ("steps", "[" * 5000 + "]" * 5000),
    ],
)
def test_a_job_with_a_value_that_nobody_can_count_with_is_refused(unix: httpx.Client, field: str, value: str) -> None:
    body = json.dumps({"spec": {**SPEC, field: "@"}}).replace('"@"', value)
    answer = unix.put("/v1/jobs/job-1", content=body.encode(), headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["message"]


@pytest.mark.parametrize("seed", range(3))
def test_no_fuzzed_submission_is_an_error_of_the_controllers(unix: httpx.Client, seed: int) -> None:
    _fuzz_submissions(unix, seed, 200)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(100, 105))
def test_ten_thousand_fuzzed_submissions(unix: httpx.Client, seed: int) -> None:
    _fuzz_submissions(unix, seed, 2000)


def _fuzz_submissions(client: httpx.Client, seed: int, count: int) -> None:
    rand = random.Random(seed)
    full = {
        **SPEC,
        "inputs": ["a.txt"],
        "outputs": ["*.fa"],
        "fetches": [{"source": "s3://bucket/x", "path": "x"}],
        "environment": {"A": "b"},
        "tags": {"a": "b"},
        "deadline_seconds": 7200.0,
        "work_seconds": 3600.0,
        "idle_seconds": 600.0,
        "ports": [{"name": "web", "port": 80}],
        "steps": [],
        "secrets": {"KEY": {"from": "value"}},
        "size_parameters": {},
        "memory_bytes": 1 << 30,
    }
    good = json.dumps({"spec": full, "modes": {"a.txt": 420}, "secrets": {"KEY": "eA=="}}).encode()
    for n in range(count):
        body = mutated(good, rand)
        answer = client.put(f"/v1/jobs/job-{n}", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code < 500, (body, answer.text)


def test_lines_of_the_bill(unix: httpx.Client, service: FakeService) -> None:
    begins = datetime(2026, 1, 2, tzinfo=UTC)
    line = ChargeLine(
        ChargeKind.MACHINE, begins, begins + timedelta(hours=1), 3600.0, 30_000, 96_000, JobId("a"), JobId("a"), 1
    )
    kept = ChargeLine(ChargeKind.IMAGE, begins + timedelta(days=1), begins + timedelta(days=2), 0.5, 7, 7, resource="snap")
    service.charged = [line, kept]
    first, second = unix.get("/v1/charges").json()["charges"]
    assert (first["kind"], first["usd_micros"], first["usd_micros_on_demand"], first["attempt"]) == (
        "machine",
        30_000,
        96_000,
        1,
    )
    assert (second["job"], second["payer"], second["resource"]) == (None, None, "snap")
    of_day = unix.get("/v1/charges", params={"since": "2026-01-02T15:00:00Z", "until": "2026-01-03T00:00:00Z"}).json()
    assert of_day == {"charges": [first]}
    assert unix.get("/v1/charges", params={"since": "2026-01-02T15:00:00"}).status_code == 422, "a time needs a zone"
