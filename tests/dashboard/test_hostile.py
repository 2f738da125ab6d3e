"""Whatever jobs, tags, notes and logs hold stays text: nothing of it runs, and nothing is loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from spotsurfer_wire import object_keys
from support.dashboards import Dashboard, dashboard, heard, until
from support.made_up_fleet import STORY, say

from spotsurfer.model.job import JobId, JobState
from spotsurfer.ports.service import Why
from spotsurfer.state import jobs as rows
from spotsurfer.state import timeline

pytestmark = pytest.mark.real
EVIL = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">'\"{{7*7}}{% raw %}\u202egpj&amp;"
PATHS = (
    "/",
    "/?q=%3Cscript%3E&state=%22x&sort=%27&page=-1",
    "/queue",
    "/costs",
    "/costs?by=tag:%3Cb%3E",
    f"/jobs/{STORY}",
    "/jobs/%3Cscript%3E",
    "/login?next=/%22%3E%3Cscript%3E",
)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    folder: Path = tmp_path_factory.mktemp("hostile")
    with dashboard(folder, 4) as place:
        service = place.controller.service
        now = service.clock.now()
        with service.engine.begin() as c:
            job = rows.load_job(c, JobId(STORY))
            spec = replace(job.spec, name=EVIL, project=EVIL, tags={EVIL: EVIL, "tag": EVIL}, command=(EVIL,), user=EVIL)
            rows.save_job(c, replace(job, spec=spec, reason=EVIL, owner=EVIL))
            rows.add_job(c, replace(job, id=JobId(EVIL), spec=spec, state=JobState.QUEUED, owner=EVIL))
            say(c, STORY, 4, now, "alert", EVIL)
            timeline.add_decision(c, JobId(STORY), Why(now, (EVIL,), ((EVIL, EVIL),), EVIL))
        place.controller.loop._notes = {JobId(STORY): EVIL, JobId(EVIL): EVIL}
        place.controller.loop.last_error = EVIL
        data = (EVIL + "\x1b[31m\x00\n").encode() + b"\xff\xfe\n"
        found = service.stored_output._store.list(object_keys.attempt_log_prefix(STORY, 4))
        end = int(found[-1].key.rpartition("-")[2])
        service.stored_output._store.put(object_keys.log_key(STORY, 4, "out", end, end + len(data)), data)
        yield place


def test_nothing_of_it_runs(hostile: Dashboard, browser: Browser) -> None:
    context = hostile.context(browser)
    page = context.new_page()
    said, asked = heard(page), []
    page.on("request", lambda r: asked.append(r.url))
    for path in PATHS:
        page.goto(hostile.url + path)
        page.wait_for_timeout(50)
        assert page.title() != "owned", path
        assert page.locator("main script, main img, main iframe, main [onerror], main [style], svg script").count() == 0, path
        assert "49{%" not in page.content()
    said = [x for x in said if "404" not in x]  # a job that there is not
    assert said == []
    assert all(url.startswith(hostile.url) for url in asked)
    page.goto(f"{hostile.url}/jobs/{STORY}")
    for part in (".note", "#asked ~ dl", ".why", ".log", "#moments ~ div"):
        assert EVIL[:40] in page.locator(part).first.inner_text(), part
    context.close()


def test_news_of_it_stays_text(hostile: Dashboard, browser: Browser) -> None:
    context = hostile.context(browser)
    page = context.new_page()
    page.goto(hostile.url)
    until(page, "source && source.readyState === 1")
    service = hostile.controller.service
    with service.engine.begin() as c:
        say(c, STORY, 4, service.clock.now(), "alert", EVIL + "\n\nevent: bye\ndata: {}\n\n")
    until(page, "document.getElementById('news').textContent.includes('<script>')")
    page.wait_for_timeout(800)
    assert page.title() == "Fleet · spotsurfer" and page.locator("main script, main img").count() == 0
    context.close()


def test_each_answer_has_the_headers(hostile: Dashboard) -> None:
    import httpx

    headers = {"Authorization": "Bearer a-token-of-some-length"}
    for path in (*PATHS, "/static/dashboard.js", "/static/nothing", "/store"):
        got = httpx.get(hostile.url + path, headers=headers).headers
        assert got["content-security-policy"].startswith("default-src 'self';"), path
        assert "unsafe" not in got["content-security-policy"]
        assert got["x-content-type-options"] == "nosniff"
        assert (got["cache-control"] == "no-store") == (not path.startswith("/static/dashboard")), path
