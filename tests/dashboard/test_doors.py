"""How browsers come in beside tokens: by a proxy's header, and by a socket that somebody forwards to their own host."""

from __future__ import annotations

import ipaddress

import pytest
from support.fake_service import FakeService
from support.in_process import client_of

from spotsurfer.dashboard.pages import router
from spotsurfer.model.job import JobId, JobSpec
from spotsurfer.web.app import make_app
from spotsurfer.web.guard import Door, Proxy

FORGED = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture
def service() -> FakeService:
    found = FakeService()
    found.submit(JobId("hers"), JobSpec("hers", ("true",)), {}, owner="ada")
    return found


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8470", 200),
        ("127.0.0.1:8470", 200),
        ("[::1]:8470", 200),
        ("spotsurfer", 200),
        ("evil.example:8470", 403),
        ("a.b", 403),
    ],
)
def test_a_forwarded_socket_has_no_name_of_others(service: FakeService, host: str, status: int) -> None:
    with client_of(make_app(service)) as client:
        for path in ("/", "/v1/jobs"):
            assert client.get(path, headers={"Host": host}).status_code == status


def test_the_socket_needs_no_login_but_forms_need_their_key(service: FakeService) -> None:
    with client_of(make_app(service)) as client:
        page = client.get("/jobs/hers/hold").text
        assert client.post("/jobs/hers/hold", data={"form_key": "0" * 64}).status_code == 403
        key = page.partition('name="form_key" value="')[2].partition('"')[0]
        assert client.post("/jobs/hers/hold", data={"form_key": key}).status_code == 303
        assert client.post("/login", data={"token": "x"}).status_code == 401


def test_a_proxys_people_need_no_login(service: FakeService) -> None:
    proxy = Proxy("X-Forwarded-User", [ipaddress.ip_network("10.1.0.0/16")])
    door = Door("a-token-of-some-length", None, proxy)
    with client_of(make_app(service, door), "10.1.2.3") as client:
        assert "hers" in client.get("/", headers={"X-Forwarded-User": "ada"}).text
        assert "hers" not in client.get("/", headers={"X-Forwarded-User": "bob"}).text
        key = client.get("/jobs/hers/hold", headers={"X-Forwarded-User": "ada"}).text.partition('name="form_key" value="')[2][
            :64
        ]
        assert client.post("/jobs/hers/hold", data={"form_key": key}, headers={"X-Forwarded-User": "bob"}).status_code == 403
        assert client.post("/jobs/hers/hold", data={"form_key": key}, headers={"X-Forwarded-User": "ada"}).status_code == 303


@pytest.mark.parametrize("route", router.routes, ids=lambda r: f"{r.methods}{r.path}")
def test_strangers_see_the_login_alone(service: FakeService, route: object) -> None:
    path = route.path.replace("{job}", "hers").replace("{what}", "stats").replace("{name}", "dashboard.css")  # type: ignore[attr-defined]
    with client_of(make_app(service, Door("a-token-of-some-length"))) as client:
        for method in route.methods:  # type: ignore[attr-defined]
            answer = client.request(method, path, content=b"form_key=x", headers=FORGED)
            known = path.startswith(("/login", "/static/")) and (method == "GET" or path == "/login")
            elsewhere = path.startswith("/login/")  # there is no provider here
            assert answer.status_code == (404 if elsewhere else 401 if not known or method == "POST" else 200)
            assert "hers" not in answer.text
