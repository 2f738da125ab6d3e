"""Signing in at an OpenID Connect provider that we did not write: oidc-provider-mock, in a process of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import KeySet, OctKey, RSAKey
from support.fake_service import FakeService
from support.http_server import HttpServer, running
from support.in_process import client_of
from support.oidc_provider import provider

from spotsurfer.model.access import Role
from spotsurfer.model.errors import Denied
from spotsurfer.model.job import JobId, JobSpec
from spotsurfer.ports.clock import ManualClock, SystemClock
from spotsurfer.web.app import make_app
from spotsurfer.web.guard import Door
from spotsurfer.web.oidc import Oidc, OidcRules, principal_of

CALLBACK = "http://controller.example/login/callback"
RULES = OidcRules("", "surf", "a secret", operators=frozenset({"ops"}), viewers=frozenset({"audit"}))


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with provider(tmp_path_factory.mktemp("oidc")) as found:
        yield found


def came_back(oidc: Oidc, sub: str) -> tuple[str, str]:
    """The address that the provider sends the browser back to, and the state in its cookie."""
    url, state = oidc.begin(CALLBACK, "/jobs/x")
    answer = httpx.post(url, data={"sub": sub})
    assert answer.status_code in (302, 303), answer.text
    return answer.headers["location"], state


@pytest.fixture
def oidc(issuer: str) -> Oidc:
    return Oidc(replace(RULES, issuer=issuer), SystemClock().now)


@pytest.mark.parametrize(
    ("sub", "name", "role"),
    [
        ("ada", "ada@example.org", Role.USER),
        ("olga", "olga@example.org", Role.OPERATOR),
        ("vera", "vera@example.org", Role.VIEWER),
    ],
)
def test_who_signs_in_is_somebody(oidc: Oidc, sub: str, name: str, role: Role) -> None:
    url, state = came_back(oidc, sub)
    token, place = oidc.finish(url, state)
    assert place == "/jobs/x"
    who = oidc.who(token)
    assert who is not None
    assert (who.name, who.role, who.via) == (name, role, "oidc")


def test_an_address_that_nobody_verified_names_nobody(oidc: Oidc) -> None:
    url, state = came_back(oidc, "mallory")
    with pytest.raises(Denied, match="no place for you"):
        oidc.finish(url, state)


def test_the_way_back_is_for_one_browser_once(oidc: Oidc) -> None:
    url, state = came_back(oidc, "ada")
    _, other = came_back(oidc, "olga")
    with pytest.raises(Denied, match="did not sign you in"):
        oidc.finish(url, other)
    oidc.finish(url, state)
    with pytest.raises(Denied, match="begin again"):
        oidc.finish(url, state)
    with pytest.raises(Denied, match="begin again"):
        oidc.finish(url, "")


def test_the_provider_gets_a_challenge_and_a_nonce(oidc: Oidc) -> None:
    url, state = oidc.begin(CALLBACK, "/")
    asked = {k: v[0] for k, v in parse_qs(urlsplit(url).query).items()}
    assert (asked["state"], asked["redirect_uri"], asked["code_challenge_method"]) == (state, CALLBACK, "S256")
    assert {"openid"} <= set(asked["scope"].split())
    assert asked["nonce"] and asked["code_challenge"]


def test_the_api_takes_the_token(oidc: Oidc) -> None:
    token, _ = oidc.finish(*came_back(oidc, "ada"))
    service = FakeService()
    service.submit(JobId("hers"), JobSpec("hers", ("true",)), {}, owner="ada@example.org")
    service.submit(JobId("his"), JobSpec("his", ("true",)), {}, owner="bob@example.org")
    with client_of(make_app(service, Door("a-token-of-some-length", oidc=oidc))) as client:
        asked = client.get("/v1/jobs", headers={"Authorization": f"Bearer {token}"})
        assert [j["id"] for j in asked.json()["jobs"]] == ["hers"]
        assert client.get("/v1/jobs", headers={"Authorization": f"Bearer {token[:-3]}AAA"}).status_code == 401


# ---- Forged tokens, against a provider with keys of our own


class Keys(HttpServer):
    """A provider that only has keys."""

    def __init__(self) -> None:
        from http.server import BaseHTTPRequestHandler

        class Handler(BaseHTTPRequestHandler):
            server: Keys  # pyright: ignore[reportIncompatibleVariableOverride]

            def do_GET(self) -> None:
                import json

                about = {"issuer": self.server.issuer, "jwks_uri": self.server.url + "/keys"}
                self.server.asked.append(self.path)
                found = self.server.keys.as_dict(private=False) if self.path == "/keys" else about
                self.send_response(500 if self.server.fails else 200)
                self.end_headers()
                self.wfile.write(json.dumps(found).encode())

            def log_message(self, format: str, *args: object) -> None:
                """Nothing."""

        super().__init__(Handler)
        self.issuer = self.url
        self.asked: list[str] = []
        self.fails = False
        self.change()

    def change(self) -> None:
        self.key = RSAKey.generate_key(2048, auto_kid=True)
        self.keys = KeySet([self.key])


class World:
    def __init__(self, server: Keys) -> None:
        self.server, self.clock = server, ManualClock(SystemClock().now())
        self.oidc = Oidc(replace(RULES, issuer=server.issuer), self.clock.now)

    def claims(self, **changes: Any) -> dict[str, Any]:
        now = int(self.clock.now().timestamp())
        usual = {"iss": self.server.issuer, "aud": "surf", "sub": "1", "email": "ada@example.org", "iat": now, "exp": now + 600}
        return {k: v for k, v in {**usual, **changes}.items() if v is not None}

    def token(self, key: Any = None, algorithm: str = "RS256", **changes: Any) -> str:
        key = key or self.server.key
        return jwt.encode({"alg": algorithm, "kid": key.kid}, self.claims(**changes), key, algorithms=[algorithm])


@pytest.fixture
def world() -> Iterator[World]:
    with running(Keys()) as server:
        yield World(server)


def test_a_good_one_is_good(world: World) -> None:
    who = world.oidc.who(world.token())
    assert who is not None
    assert who.name == "ada@example.org"


@pytest.mark.parametrize(
    "change",
    [
        {"iss": "https://evil.example"},
        {"aud": "another"},
        {"aud": None},
        {"exp": 1},
        {"exp": None},
        {"sub": None},
        {"email": None},
        {"email": "../../etc/passwd"},
        {"email": "ada@example.org\nroot"},
        {"aud": ["surf", "another"], "azp": "another"},
    ],
)
def test_a_token_for_somebody_else_or_another_time_is_not(world: World, change: dict[str, Any]) -> None:
    assert world.oidc.who(world.token(**change)) is None


def test_nobody_makes_tokens_but_the_provider(world: World) -> None:
    stranger = RSAKey.generate_key(2048, auto_kid=True)
    assert world.oidc.who(world.token(stranger)) is None
    header, payload, _ = world.token().split(".")
    import base64

    none = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
    assert world.oidc.who(f"{none}.{payload}.") is None
    assert world.oidc.who(f"{header}.{payload}.AAAA") is None
    public = world.server.key.as_pem(private=False)  # the public key as a shared secret: the classic
    forged = OctKey.import_key(public.replace(b"-----", b"_____"), {"kid": str(world.server.key.kid)})
    assert world.oidc.who(world.token(forged, "HS256")) is None
    for text in ("", "..", "a.b.c", "ä.ö.ü", "." * 2 + "x" * 10_000):
        assert world.oidc.who(text) is None


def test_new_keys_are_asked_for_but_not_by_each_forged_token(world: World) -> None:
    assert world.oidc.who(world.token()) is not None
    world.server.change()
    assert world.oidc.who(world.token()) is None, "the keys were asked for just now"
    world.clock.advance(timedelta(minutes=1).total_seconds())
    assert world.oidc.who(world.token()) is not None
    asked = len(world.server.asked)
    for _ in range(20):
        world.oidc.who(world.token(RSAKey.generate_key(2048, auto_kid=True)))
    assert len(world.server.asked) - asked <= 1


def test_a_provider_that_is_away_lets_nobody_in_and_breaks_nothing() -> None:
    away = Oidc(replace(RULES, issuer="http://127.0.0.1:1"), SystemClock().now)
    assert away.who("a.b.c") is None
    with pytest.raises(Denied, match="can't be reached"):
        away.begin(CALLBACK, "/")


def test_a_provider_that_is_away_is_not_asked_for_each_token(world: World) -> None:
    """Whoever sends such tokens would keep all threads waiting for it."""
    token = world.token()
    world.server.fails = True
    for _ in range(10):
        assert world.oidc.who(token) is None
    assert len(world.server.asked) == 1
    world.server.fails = False
    world.clock.advance(10)
    assert world.oidc.who(token) is not None


def test_a_provider_of_another_name_is_refused(world: World) -> None:
    world.server.issuer = "https://evil.example"
    assert world.oidc.who(world.token(iss="https://evil.example")) is None


def test_groups_say_who_may_do_what() -> None:
    rules = replace(RULES, users=frozenset({"science"}))
    of = {"email": "a@b", "groups": ["science"]}
    assert principal_of(of, rules) is not None
    assert principal_of({**of, "groups": ["sales"]}, rules) is None
    both = principal_of({**of, "groups": ["audit", "ops"]}, rules)
    assert both is not None
    assert both.role is Role.OPERATOR
    assert re.fullmatch("oidc", both.via)
