"""A browser signs in at the organisation's provider, and is who it says there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page
from support.dashboards import Dashboard, dashboard, heard
from support.oidc_provider import provider

from spotsurfer.model.access import OidcRules
from spotsurfer.ports.clock import SystemClock
from spotsurfer.web.oidc import Oidc

AWAY = re.compile(r"^https?://(?!(127\.0\.0\.1|localhost)[:/])")
pytestmark = [pytest.mark.real]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    folder: Path = tmp_path_factory.mktemp("sign-in")
    with provider(folder) as issuer, dashboard(folder, 3) as made:
        rules = OidcRules(issuer, "surf", "a secret", operators=frozenset({"ops"}), viewers=frozenset({"audit"}))
        made.app.state.door.oidc = Oidc(rules, SystemClock().now)
        yield made


@pytest.fixture
def page(place: Dashboard, browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    context.set_default_timeout(20_000)
    context.route(AWAY, lambda route: route.abort())  # the provider's page asks for a style sheet from elsewhere
    yield context.new_page()
    context.close()


def signs_in(page: Page, place: Dashboard, sub: str, wanted: str = "/costs") -> None:
    page.goto(place.url + wanted)
    page.get_by_role("link", name="Sign in").click()
    page.fill("input[name=sub]", sub)
    page.get_by_role("button", name="Authorize").click()


@pytest.mark.parametrize(("sub", "role", "store"), [("ada", "user", 0), ("vera", "viewer", 0), ("olga", "operator", 1)])
def test_who_signs_in_there_is_in_here(place: Dashboard, page: Page, sub: str, role: str, store: int) -> None:
    signs_in(page, place, sub)
    page.wait_for_url("**/costs")
    said = heard(page)
    page.reload()
    assert page.locator("header").get_by_text(f"{sub}@example.org").count() >= 1
    assert page.get_by_role("link", name="Store").count() == store
    cookies: dict[str, Any] = {c.get("name", ""): c for c in page.context.cookies()}
    assert (cookies["spotsurfer_session"]["httpOnly"], cookies["spotsurfer_session"]["sameSite"]) == (True, "Strict")
    assert "spotsurfer_sign_in" not in cookies
    assert said == []


def test_who_is_nobody_here_stays_outside(place: Dashboard, page: Page) -> None:
    signs_in(page, place, "mallory")
    page.get_by_text("no place for you").wait_for()
    page.goto(place.url + "/costs")
    assert "/login" in page.url


def test_another_browser_cannot_be_signed_in_as_somebody(place: Dashboard, page: Page) -> None:
    """Somebody sends a link that ends their own sign-in: whoever follows it would work under their name."""
    page.goto(place.url + "/login")
    with httpx.Client(follow_redirects=False) as attacker:
        there = attacker.get(place.url + "/login/provider").headers["location"]
        back = attacker.post(there, data={"sub": "olga"}).headers["location"]
    page.goto(back)
    page.get_by_text("begin again").wait_for()
    assert "spotsurfer_session" not in {c.get("name") for c in page.context.cookies()}


def test_after_the_sign_in_it_goes_to_a_page_of_ours_alone(place: Dashboard, page: Page) -> None:
    page.goto(place.url + "/login?next=https://evil.example/")
    page.get_by_role("link", name="Sign in").click()
    page.fill("input[name=sub]", "ada")
    page.get_by_role("button", name="Authorize").click()
    page.wait_for_url(place.url + "/")


def test_without_a_provider_there_is_no_such_way(small: Dashboard) -> None:
    assert httpx.get(small.url + "/login/provider").status_code == 404
    assert "Sign in" not in httpx.get(small.url + "/login").text
