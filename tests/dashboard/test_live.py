"""Open pages follow what happens: news of those jobs that one may see, a lost connection is said and mended, and a revoked
token ends the stream.
"""

from __future__ import annotations

import time

import httpx
import pytest
from playwright.sync_api import Browser
from support.dashboards import Dashboard, until
from support.made_up_fleet import STORY, say

from spotsurfer.dashboard import live
from spotsurfer.model.access import Role
from spotsurfer.model.job import JobId

pytestmark = pytest.mark.real


def happens(place: Dashboard, job: str, text: str) -> None:
    service = place.controller.service
    with service.engine.begin() as c:
        say(c, job, 1, service.clock.now(), "alert", text)


def test_a_page_changes_by_itself_and_keeps_the_focus(small: Dashboard, browser: Browser) -> None:
    service = small.controller.service
    context = small.context(browser, "ada", Role.USER)
    page = context.new_page()
    page.goto(small.url)
    page.focus(f"#job-{STORY} a")
    page.evaluate(f"document.getElementById('job-{STORY}').mark = 1")
    spent = page.locator("#limits-now dd").first.inner_text()
    service.hold(JobId(STORY))
    until(page, "document.getElementById('news').textContent.includes('asked to pause it')")
    page.wait_for_selector(".story >> text=Its user asked to pause it")
    assert page.evaluate("document.activeElement.closest('tr').mark") == 1, "the row was replaced"
    assert page.locator("#limits-now dd").first.inner_text() == spent
    service.resume(JobId(STORY))
    page.wait_for_selector(".story >> text=Its user lets it go on")
    context.close()


def test_a_row_that_moves_keeps_the_focus(small: Dashboard, browser: Browser) -> None:
    context = small.context(browser)
    page = context.new_page()
    page.goto(f"{small.url}/?sort=name")
    rows = "[...document.querySelectorAll('table.fleet tbody tr')].map(r => r.id)"
    before = page.evaluate(rows)
    page.focus(f"#{before[-1]} a")
    page.evaluate("history.replaceState(null, '', '/?sort=name&dir=back'); load()")
    until(page, f"{rows}[0] === {before[-1]!r}")
    assert page.evaluate(rows) == before[::-1]
    assert page.evaluate("document.activeElement.closest('tr').id") == before[-1]
    context.close()


def test_a_lost_connection_is_said_and_mended_and_nothing_is_missed(small: Dashboard, browser: Browser) -> None:
    context = small.context(browser)
    page = context.new_page()
    page.goto(small.url)
    until(page, "source && source.readyState === 1")
    small.stop()
    try:
        page.wait_for_selector("#lost >> text=Connection lost")
        assert page.locator("#lost").get_attribute("role") == "alert"
        happens(small, STORY, "while nobody listened")
    finally:
        small.start()
    page.wait_for_selector(".story >> text=while nobody listened")
    page.wait_for_selector("#lost", state="hidden")
    happens(small, STORY, "and afterwards")
    page.wait_for_selector(".story >> text=and afterwards")
    context.close()


def test_a_stream_holds_the_jobs_of_who_asks_alone(small: Dashboard) -> None:
    service = small.controller.service
    last = max(n for n, _ in service.timeline(None, last=1))
    mine = next(s.job.id for s in service.jobs(owner="bob"))
    happens(small, STORY, "what ada must know alone")
    happens(small, mine, "for bob")
    with small.client("bob", Role.USER) as bob, bob.stream("GET", f"/events?after={last}") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        text = ""
        for piece in answer.iter_text():
            text += piece
            if "for bob" in text:
                break
    assert "event: ping" in text and "what ada" not in text and STORY not in text
    numbered = int(text.split("id: ")[-1].split("\n")[0])
    with small.client("bob", Role.USER) as bob:
        headers = {"Last-Event-ID": str(numbered)}
        happens(small, mine, "the next one")
        with bob.stream("GET", f"/events?after={last}", headers=headers) as answer:
            text = ""
            for piece in answer.iter_text():
                text += piece
                if "the next one" in text:
                    break
    assert "for bob" not in text


def test_a_stream_ends_with_its_token(small: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PING_SECONDS", 0.2)
    token, text = small.controller.access.make_token("mei", Role.USER, None)
    headers = {"Authorization": f"Bearer {text}"}
    with httpx.Client(base_url=small.url, headers=headers, timeout=10) as mei, mei.stream("GET", "/events") as answer:
        said, revoked = "", 0.0
        for piece in answer.iter_text():
            said += piece
            if "ping" in said and not revoked:
                small.controller.access.revoke_token(token.id)
                revoked = time.monotonic()
    assert revoked and said.rstrip().endswith("event: bye\ndata: {}")


def test_nobody_holds_all_streams(small: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "STREAMS_MAX", 1)
    streams = small.app.state.site.streams
    with small.client("tomas", Role.VIEWER) as tomas, tomas.stream("GET", "/events") as first:
        pieces = first.iter_text()  # kept: when it goes, the stream is closed
        assert "retry" in next(pieces)
        assert tomas.get("/events").status_code == 429
        assert tomas.get("/").status_code == 200
    end = time.monotonic() + 10
    while streams["tomas"] and time.monotonic() < end:
        time.sleep(0.05)
    assert streams["tomas"] == 0
