"""Who may do what on the pages, whatever a browser sends: nothing passes the guard by."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import Browser
from support.dashboards import FILE_TOKEN, Dashboard, form_key
from support.made_up_fleet import STORY

from spotsurfer.dashboard.actions import ACTIONS
from spotsurfer.dashboard.sessions import COOKIE
from spotsurfer.model.access import Role
from spotsurfer.model.job import JobId, Wish

pytestmark = pytest.mark.real
JOB = f"/jobs/{STORY}"  # ada's
FORMS = {"priority": {"priority": "7"}, "budget": {"usd": "31.5"}, "move": {"instance_type": "", "market": "spot"}}
HERS = (STORY, "assemble.py", "contigs 6783")
LATER = ("cancel",)  # ends the job: tried last
PEOPLE = {"ada": Role.USER, "bob": Role.USER, "eve": Role.VIEWER, "olga": Role.OPERATOR}


def trace(place: Dashboard) -> str:
    """All that an action can change."""
    job = place.controller.service.job(JobId(STORY)).job
    return repr((job.wish, job.state, job.move, job.save_at_least, job.spec.priority, job.spec.budget_usd_micros))


def send(client: httpx.Client, name: str, key: str | None, **headers: str) -> httpx.Response:
    form = FORMS.get(name, {}) | ({"form_key": key} if key is not None else {})
    return client.post(f"{JOB}/{name}", data=form, headers=headers)


def own_key(client: httpx.Client) -> str:
    """A good one of this session, from the form that logs out."""
    return form_key(client, "/")


@pytest.mark.parametrize("name", [n for n in ACTIONS if n != "resume"])
def test_a_viewer_is_shown_no_action_and_refused_each(small: Dashboard, name: str) -> None:
    before = trace(small)
    with small.client("eve", Role.VIEWER) as eve:
        page = eve.get(JOB)
        assert page.status_code == 200 and STORY in page.text
        assert f"{JOB}/{name}" not in page.text
        assert eve.get(f"{JOB}/{name}").status_code == 403
        assert send(eve, name, own_key(eve)).status_code == 403
    assert trace(small) == before


@pytest.mark.parametrize("name", ACTIONS)
def test_a_users_job_does_not_exist_for_another_user(small: Dashboard, name: str) -> None:
    before = trace(small)
    with small.client("bob", Role.USER) as bob:
        for answer in (bob.get(JOB), bob.get(f"{JOB}/{name}"), send(bob, name, own_key(bob))):
            assert answer.status_code == 404
            assert not any(word in answer.text.replace(JOB, "").replace(repr(STORY).replace("'", "&#39;"), "") for word in HERS)
        for path in ("/", "/?q=story", "/queue", "/costs", "/costs?by=name"):
            text = bob.get(path).text
            assert not any(word in text for word in HERS), path
            assert "ada" not in text.replace("dashboard", "").replace("owner:ada", ""), path
    assert trace(small) == before


@pytest.mark.parametrize("name", [n for n in ACTIONS if n not in LATER and n != "resume"])
def test_a_forged_form_does_nothing(small: Dashboard, name: str) -> None:
    before = trace(small)
    with small.client("ada", Role.USER) as ada, small.client("olga", Role.OPERATOR) as olga:
        hers, others = own_key(ada), own_key(olga)
        for key in ("", "x", others, hers[:-1], "é"):
            assert send(ada, name, key).status_code == 403
        assert send(ada, name, None).status_code in (400, 403)
        for site in ("cross-site", "same-site"):
            assert send(ada, name, hers, **{"Sec-Fetch-Site": site}).status_code == 403
        assert ada.post(f"{JOB}/{name}", json={"form_key": hers}).status_code == 400
        assert ada.get(f"{JOB}/{name}?form_key={hers}").status_code == 200  # a GET asks, and does nothing
    assert httpx.post(f"{small.url}{JOB}/{name}", data={"form_key": hers}).status_code == 401
    assert trace(small) == before


@pytest.mark.parametrize("who", ["ada", "olga"])
def test_its_owner_and_an_operator_do_each_action(small: Dashboard, who: str) -> None:
    service = small.controller.service
    with small.client(who, PEOPLE[who]) as client:
        page = client.get(JOB).text
        for name in ("checkpoint", "move", "priority", "budget", "hold", "resume"):
            assert f'{JOB}/{name}"' in page or name == "resume"
            before = trace(small)
            answer = send(client, name, form_key(client, f"{JOB}/{name}"))
            assert (answer.status_code, answer.headers.get("location")) == (303, f"{JOB}?said={name}"), name
            assert trace(small) != before or name in ("priority", "budget", "checkpoint"), name
        done = service.job(JobId(STORY)).job
        assert (done.wish, done.spec.priority, done.spec.budget_usd_micros) == (Wish.RUN, 7, 31_500_000)
        told = {(x.who, x.what, x.status) for x in small.controller.access.audit(job=STORY)}
        assert (who, "hold", 303) in told


def test_what_makes_no_sense_is_said_on_the_form(small: Dashboard) -> None:
    with small.client("ada", Role.USER) as ada:
        key = form_key(ada, f"{JOB}/priority")
        for name, form, words in (
            ("priority", {"priority": "high"}, "expected a whole number"),
            ("priority", {"priority": "101"}, "priority is 101"),
            ("budget", {"usd": "-1"}, "amount"),
            ("move", {"instance_type": "x9.huge"}, "x9.huge"),
            ("resume", {}, "is not suspended"),
        ):
            answer = ada.post(f"{JOB}/{name}", data=form | {"form_key": key})
            assert 400 <= answer.status_code < 500 and words in answer.text, (name, answer.text)
            assert 'role="alert"' in answer.text


def test_the_store_is_for_operators(small: Dashboard) -> None:
    for who in ("ada", "eve"):
        with small.client(who, PEOPLE[who]) as client:
            assert 'href="/store"' not in client.get("/").text
            assert client.get("/store").status_code == 403
            assert client.post("/store/stats", data={"form_key": own_key(client)}).status_code == 403
    with small.client("olga", Role.OPERATOR) as olga:
        assert olga.post("/store/stats", data={"form_key": "x"}).status_code == 403
        assert olga.post("/store/gc", data={"form_key": own_key(olga)}).status_code == 404
        assert olga.post("/store/stats", data={"form_key": own_key(olga)}).status_code == 303
        assert "Add up sizes" in olga.get("/store").text


# ---- Sessions


def test_a_login_lasts_until_the_token_is_revoked(small: Dashboard) -> None:
    token, text = small.controller.access.make_token("mei", Role.USER, None)
    answer = httpx.post(f"{small.url}/login", data={"token": text, "next": "/queue"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/queue")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "secure" not in cookie
    assert text.rsplit("_", 1)[-1] not in answer.headers["set-cookie"]
    under_tls = httpx.post(f"{small.url}/login", data={"token": text}, headers={"X-Forwarded-Proto": "https"})
    assert "secure" in under_tls.headers["set-cookie"].lower()
    with httpx.Client(
        base_url=small.url, headers={"Cookie": f"{COOKIE}={answer.cookies[COOKIE]}", "Accept": "text/html"}
    ) as mei:
        assert mei.get("/").status_code == 200
        assert mei.get("/v1/me").status_code == 401  # the API takes no cookie: no other page can make a browser use it
        small.controller.access.revoke_token(token.id)
        gone = mei.get("/queue?x=1")
        assert (gone.status_code, gone.headers["location"]) == (303, "/login?next=%2Fqueue%3Fx%3D1")
        assert mei.get("/events", headers={"Accept": "text/event-stream"}).status_code == 401
        assert mei.post("/logout").status_code == 401


def test_a_logout_ends_the_session(small: Dashboard) -> None:
    answer = httpx.post(f"{small.url}/login", data={"token": FILE_TOKEN})
    with httpx.Client(base_url=small.url, headers={"Cookie": f"{COOKIE}={answer.cookies[COOKIE]}"}) as client:
        assert client.post("/logout", data={"form_key": "x"}).status_code == 403
        done = client.post("/logout", data={"form_key": own_key(client)})
        assert done.status_code == 303 and "max-age=0" in done.headers["set-cookie"].lower()
        assert client.get("/").status_code == 401


@pytest.mark.parametrize(
    "place", ["//evil.example", "/\\evil.example", "https://evil.example", "/v1/info", "/logout", "/\n/x", "x"]
)
def test_a_login_leads_to_our_pages_alone(small: Dashboard, place: str) -> None:
    answer = httpx.post(f"{small.url}/login", data={"token": FILE_TOKEN, "next": place})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


def test_wrong_tokens_open_nothing(small: Dashboard) -> None:
    for token in ("", "x", FILE_TOKEN[:-1], "spotsurfer_1_é", "\x00"):
        answer = httpx.post(f"{small.url}/login", data={"token": token})
        assert answer.status_code == 401 and "set-cookie" not in answer.headers
    assert (
        httpx.post(f"{small.url}/login", data={"token": FILE_TOKEN}, headers={"Sec-Fetch-Site": "cross-site"}).status_code
        == 403
    )
    assert httpx.get(small.url, headers={"Cookie": f"{COOKIE}=x; other=1"}).status_code == 401


# ---- In a browser


def test_an_action_asks_first_with_and_without_scripts(small: Dashboard, browser: Browser) -> None:
    service = small.controller.service
    for scripts in (True, False):
        service.prioritize(JobId(STORY), 1)
        context = small.context(browser, "ada", Role.USER, java_script_enabled=scripts)
        page = context.new_page()
        page.goto(small.url + JOB)
        page.click("text=Priority >> visible=true")
        page.wait_for_selector("dialog[open] #priority" if scripts else "#confirm #priority")
        assert service.job(JobId(STORY)).job.spec.priority == 1
        if scripts:
            page.keyboard.press("Escape")
            assert page.locator("dialog[open]").count() == 0
            page.click("text=Priority >> visible=true")
        page.fill("#priority", "42")
        page.click("form.stack button")
        page.wait_for_url(f"**{JOB}?said=priority")
        assert service.job(JobId(STORY)).job.spec.priority == 42
        assert "Its priority was changed." in page.inner_text("main")
        context.close()


def test_logging_in_by_hand(small: Dashboard, browser: Browser) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{small.url}/queue")
    page.fill("#token", "wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=That token is wrong")
    page.fill("#token", small.token("mei", Role.USER))
    page.keyboard.press("Enter")
    page.wait_for_url("**/queue")
    assert "mei" in page.inner_text("header")
    page.click("text=Log out")
    page.wait_for_url("**/login")
    context.close()


def test_a_link_from_elsewhere_finds_the_session(small: Dashboard, browser: Browser) -> None:
    """The cookie is not sent along then; a page of ours asks once more."""
    context = small.context(browser, "ada", Role.USER)
    page = context.new_page()
    page.route(
        "http://elsewhere.example/", lambda r: r.fulfill(content_type="text/html", body=f"<a href='{small.url}{JOB}'>x</a>")
    )
    page.goto("http://elsewhere.example/")
    page.click("a")
    page.wait_for_selector(f"h1 >> text={STORY}")
    assert page.url == small.url + JOB
    context.close()


def test_a_cancelled_job_has_no_actions(small: Dashboard) -> None:
    service = small.controller.service
    job = next(s.job for s in service.jobs(False) if s.job.id != STORY)
    with small.client(job.owner, Role.USER) as its:
        path = f"/jobs/{job.id}"
        done = its.post(f"{path}/cancel", data={"form_key": form_key(its, f"{path}/cancel")})
        assert (done.status_code, service.job(job.id).job.wish) == (303, Wish.CANCEL)
        assert not any(f'{path}/{name}"' in its.get(path).text for name in ACTIONS)
        assert "already" in its.post(f"{path}/hold", data={"form_key": own_key(its)}).text
