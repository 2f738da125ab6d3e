"""Who may do what by any route: users see and change their own jobs alone, viewers change nothing, and all is recorded."""

from __future__ import annotations

import inspect
import ipaddress
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from sqlalchemy import Engine, delete
from support.api import api
from support.fake_service import START, FakeService
from support.in_process import client_of

from spotsurfer.controller.access import AccessControl
from spotsurfer.model.access import USES, Role
from spotsurfer.model.job import JobId, JobSpec
from spotsurfer.ports.clock import ManualClock
from spotsurfer.ports.service import Progress, Service
from spotsurfer.state import schema
from spotsurfer.state.db import open_database
from spotsurfer.web.app import make_app
from spotsurfer.web.guard import Door, Proxy

FILE_TOKEN = "a-token-of-some-length"
SPEC = {"name": "other", "command": ["true"]}
HERS, NUMBER = "secret-job-1", "77"
BODIES: dict[str, Any] = {
    "submit": {"spec": SPEC},
    "submit_many": {"jobs": [{"job": HERS, "spec": SPEC}]},
    "move": {},
    "priority": {"priority": 1},
    "signal": {"signal": "USR1"},
    "budget": {"usd_micros": 1},
    "settle_home": {"tree": "0" * 64},
    "go_back": {"checkpoint": "1"},
    "fork": {},
    "new_id": {"name": "x"},
    "plan": {"spec": SPEC},
    "store_work": {},
    "home_lacks": {"home": "/h/w", "digests": ["0" * 64]},
    "set_scope_budget": {"scope": "all", "usd_micros": 1},
    "make_token": {"owner": "x", "role": "user"},
}
PATHS = {
    "job": HERS,
    "path": "a",
    "stream": "out",
    "number": NUMBER,
    "checkpoint": "1",
    "what": "stats",
    "id": "1",
    "sha256": "0" * 64,
}
# What answers a user about all jobs, or about nobody's.
OPEN_TO_USERS = {
    "info",
    "home_lacks",
    "upload_home",
    "new_id",
    "submit_many",
    "jobs",
    "jobs_brief",
    "timeline",
    "costs",
    "charges",
    "report",
    "spots",
    "plan",
    "me",
    "budgets",
    "licences",
}
OPEN_TO_VIEWERS = {"plan"}  # of what is no GET: it keeps nothing


@pytest.fixture
def service() -> FakeService:
    found = FakeService()
    found.submit(JobId(HERS), JobSpec("hers", ("true",), tags={"private": "tag"}), {}, owner="ada")
    found.say(HERS, "submitted", "what she wrote")
    return found


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return open_database(None)


@pytest.fixture
def access(engine: Engine, clock: ManualClock) -> AccessControl:
    with engine.begin() as connection:
        connection.execute(delete(schema.audit))
    return AccessControl(engine, clock)


@pytest.fixture
def client(service: FakeService, access: AccessControl) -> Iterator[httpx.Client]:
    app = make_app(service, Door(FILE_TOKEN, access), allow_on_end=False, allow_fetch=False)
    app.state.makers.note(NUMBER, "ada")
    app.state.makers.note("to-come-1", "ada")
    with client_of(app) as found:
        yield found


def as_(access: AccessControl, name: str, role: Role = Role.USER) -> dict[str, str]:
    return {"Authorization": f"Bearer {access.make_token(name, role, None)[1]}"}


class Route(NamedTuple):
    method: str
    path: str
    name: str


PAGE = make_app(FakeService()).openapi()["paths"]
ROUTES = [Route(method.upper(), path, some["operationId"]) for path, ways in PAGE.items() for method, some in ways.items()]


def ask(client: httpx.Client, route: Route, headers: dict[str, str], **paths: str) -> httpx.Response:
    path = route.path
    for name, value in {**PATHS, **paths}.items():
        path = path.replace(f"{{{name}}}", value).replace(f"{{{name}:path}}", value)
    sent: dict[str, Any] = {"json": BODIES[route.name]} if route.name in BODIES else {}
    if route.name in ("upload", "upload_home"):
        sent = {"content": b"x", "params": {"home": "/h/w", "sha256": "0" * 64}}
    return client.request(route.method, path, headers=headers, **sent)


def test_the_table_has_each_method_of_the_service() -> None:
    methods = {name for name, _ in inspect.getmembers(Service, inspect.isfunction) if not name.startswith("_")}
    assert methods == set(USES)


@pytest.mark.parametrize("route", ROUTES, ids=lambda r: r.name)
def test_a_users_job_does_not_exist_for_another_user(
    client: httpx.Client, access: AccessControl, service: FakeService, route: Route
) -> None:
    before = (repr(service.statuses), repr(service.uploads), repr(service.moments), repr(service.work), service.partials_asked)
    answer = ask(client, route, as_(access, "bob"))
    if "{" in route.path or route.name == "submit_many":
        assert answer.status_code in (403, 404), answer.text
        assert answer.status_code == 404 or route.name in ("store_work", "revoke_token")
    elif route.name not in OPEN_TO_USERS:
        assert answer.status_code == 403, answer.text
    else:
        assert answer.status_code < 300, answer.text
    for hers in ("what she wrote", '"private"', "ada"):
        assert hers not in answer.text.replace(HERS, "")
    after = (repr(service.statuses), repr(service.uploads), repr(service.moments), repr(service.work), service.partials_asked)
    assert after == before


@pytest.mark.parametrize("route", ROUTES, ids=lambda r: r.name)
def test_a_viewer_changes_nothing(client: httpx.Client, access: AccessControl, route: Route) -> None:
    answer = ask(client, route, as_(access, "eve", Role.VIEWER))
    if route.method != "GET" and route.name not in OPEN_TO_VIEWERS | {"call_off"}:
        assert answer.status_code == 403, answer.text
    elif route.name == "machine":  # a way to log in
        assert answer.status_code == 403


def test_budgets_of_several_jobs_are_set_by_operators_and_seen_by_those_for_whom_they_count(
    client: httpx.Client, access: AccessControl, service: FakeService
) -> None:
    root, bob = as_(access, "root", Role.OPERATOR), as_(access, "bob")
    for scope in ("owner:ada", "owner:bob", "all"):
        body = {"scope": scope, "usd_micros": 5_000_000, "per": "month"}
        assert client.put("/v1/budgets", json=body, headers=bob).status_code == 403
        assert client.put("/v1/budgets", json=body, headers=root).json()["usd_micros"] == 5_000_000
    assert {b.set_by for b in service.group_budgets.values()} == {"root"}
    assert [b["scope"] for b in client.get("/v1/budgets", headers=bob).json()["budgets"]] == ["owner:bob", "all"]
    assert len(client.get("/v1/budgets", headers=as_(access, "eve", Role.VIEWER)).json()["budgets"]) == 3
    gone = {"scope": "owner:ada", "per": "month"}
    assert client.delete("/v1/budgets", params=gone, headers=bob).status_code == 403
    assert client.delete("/v1/budgets", params=gone, headers=root).json() == {**gone, "again": None}
    assert client.post("/v1/reload", headers=bob).status_code == 403


def test_a_user_has_their_own_jobs(client: httpx.Client, access: AccessControl, service: FakeService) -> None:
    bob = as_(access, "bob")
    made = client.post("/v1/ids", json={"name": "mine"}, headers=bob).json()["job"]
    assert client.put(f"/v1/jobs/{made}", json={"spec": SPEC}, headers=bob).json()["owner"] == "bob"
    assert [j["id"] for j in client.get("/v1/jobs?owner=ada", headers=bob).json()["jobs"]] == [made]
    assert client.get("/v1/jobs/other", headers=bob).json()["id"] == made
    assert client.get("/v1/report", params={"job": "hers"}, headers=bob).status_code == 404
    assert client.get("/v1/report", params={"job": made}, headers=bob).status_code == 200
    assert client.post(f"/v1/jobs/{made}/cancel", headers=bob).status_code == 200
    on_end = client.put("/v1/jobs/mine-2", json={"spec": SPEC | {"on_end": ["id"]}}, headers=bob)
    assert (on_end.status_code, on_end.json()["error"]) == (403, "Denied")
    assert {j["id"] for j in client.get("/v1/jobs", headers=as_(access, "eve", Role.VIEWER)).json()["jobs"]} == {made, HERS}
    operator = {"Authorization": f"Bearer {FILE_TOKEN}"}
    assert [j["id"] for j in client.get("/v1/jobs?owner=bob", headers=operator).json()["jobs"]] == [made]


def test_an_id_to_come_and_a_number_of_work_are_their_makers(client: httpx.Client, access: AccessControl) -> None:
    bob = as_(access, "bob")
    for answer in (
        client.put("/v1/jobs/to-come-1/inputs/a", content=b"x", headers=bob),
        client.put("/v1/jobs/to-come-1", json={"spec": SPEC}, headers=bob),
        client.delete("/v1/jobs/to-come-1/inputs", headers=bob),
    ):
        assert answer.status_code == 404
    assert client.put("/v1/jobs/to-come-1/inputs/a", content=b"x", headers=as_(access, "ada")).status_code == 204


def test_tokens_end_when_they_are_revoked_or_expire(client: httpx.Client, access: AccessControl, clock: ManualClock) -> None:
    operator = {"Authorization": f"Bearer {FILE_TOKEN}"}
    asked = {"owner": "ada", "role": "user", "lives_seconds": 3600}
    made = client.post("/v1/tokens", json=asked, headers=operator).json()
    hers = {"Authorization": f"Bearer {made['text']}"}
    assert client.get("/v1/me", headers=hers).json() == {"name": "ada", "role": "user", "via": f"token {made['token']['id']}"}
    assert made["text"] not in client.get("/v1/tokens", headers=operator).text
    clock.advance(timedelta(hours=1).total_seconds())
    assert client.get("/v1/me", headers=hers).status_code == 401
    again = client.post("/v1/tokens", json=asked | {"lives_seconds": None}, headers=operator).json()
    hers = {"Authorization": f"Bearer {again['text']}"}
    assert client.get("/v1/me", headers=hers).status_code == 200
    assert client.delete(f"/v1/tokens/{again['token']['id']}", headers=operator).status_code == 200
    assert client.get("/v1/me", headers=hers).status_code == 401
    assert client.delete("/v1/tokens/nothing", headers=operator).status_code == 404
    wrong = again["text"][:-1] + ("a" if again["text"][-1] != "a" else "b")
    assert client.get("/v1/me", headers={"Authorization": f"Bearer {wrong}"}).status_code == 401


def test_no_secret_is_kept(access: AccessControl) -> None:
    _, text = access.make_token("ada", Role.USER, None)
    with access.engine.connect() as connection:
        kept = repr(connection.exec_driver_sql("select * from token").fetchall())
    assert text.split("_", 2)[2] not in kept


def test_changes_and_refusals_are_recorded(client: httpx.Client, access: AccessControl) -> None:
    ada, bob, eve = as_(access, "ada"), as_(access, "bob"), as_(access, "eve", Role.VIEWER)
    client.get(f"/v1/jobs/{HERS}", headers=ada)
    client.post(f"/v1/jobs/{HERS}/hold", headers=ada)
    client.post(f"/v1/jobs/{HERS}/cancel", headers=bob)
    client.post(f"/v1/jobs/{HERS}/cancel", headers=eve)
    client.get("/v1/tokens", headers=bob)
    told = [(x.who, x.role, x.what, x.job, x.status) for x in access.audit()]
    assert told == [
        ("ada", "user", "hold", HERS, 200),
        ("bob", "user", "cancel", HERS, 404),
        ("eve", "viewer", "cancel", HERS, 403),
        ("bob", "user", "tokens", "", 403),
    ]
    assert [x.who for x in access.audit(who="bob", last=1)] == ["bob"]
    operator = {"Authorization": f"Bearer {FILE_TOKEN}"}
    assert len(client.get(f"/v1/audit?job={HERS}", headers=operator).json()["lines"]) == 3


def test_a_proxy_is_believed_from_its_address_alone(service: FakeService, access: AccessControl) -> None:
    def asked(address: str, name: str) -> httpx.Response:
        proxy = Proxy("X-Forwarded-User", [ipaddress.ip_network("10.1.0.0/16")])
        app = make_app(service, Door(FILE_TOKEN, access, proxy, frozenset({"root@corp"})))
        with client_of(app, address) as client:
            return client.get("/v1/me", headers={"x-forwarded-user": name})

    assert asked("10.1.2.3", "ada@corp").json() == {"name": "ada@corp", "role": "user", "via": "proxy"}
    assert asked("10.1.2.3", "root@corp").json()["role"] == "operator"
    assert asked("10.2.2.3", "ada@corp").status_code == 401
    assert asked("10.1.2.3", "").status_code == 401
    assert asked("10.1.2.3", "a b\x1b[31m").status_code == 401


PEER = """
import os, sys
import httpx
os.setgid(int(sys.argv[2])); os.setuid(int(sys.argv[2]))
print(httpx.Client(transport=httpx.HTTPTransport(uds=sys.argv[1])).get("http://x/v1/me").text)
"""


@pytest.mark.real
def test_the_kernel_says_who_asks_on_the_socket(service: FakeService, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents:
        if folder.stat().st_uid == os.geteuid() and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o011)
    with api(service, tmp_path / "s"):
        (tmp_path / "s").chmod(0o666)
        command = [sys.executable, "-c", PEER, str(tmp_path / "s")]
        mine = subprocess.run([*command, str(os.geteuid())], capture_output=True, text=True, check=True, timeout=60).stdout
        nobody = subprocess.run([*command, "65534"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert '"role":"operator"' in mine
    assert '"name":"nobody","role":"user","via":"socket"' in nobody


def test_progress_of_a_rehearsal_is_its_makers(client: httpx.Client, access: AccessControl, service: FakeService) -> None:
    service.rehearse = lambda job: Progress("9", "rehearse", False, "", 0, 0, None)  # type: ignore[method-assign, assignment]
    assert client.post(f"/v1/jobs/{HERS}/rehearsals", headers=as_(access, "ada")).status_code == 202
    assert client.get("/v1/work/9", headers=as_(access, "bob")).status_code == 404
