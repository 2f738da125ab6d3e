"""Each page, empty, small and with 1,000 jobs: a checker of accessibility finds nothing serious, and the console is silent."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page
from support.dashboards import Dashboard, heard, until
from support.made_up_fleet import STORY

from spotsurfer.model.access import Role

pytestmark = pytest.mark.real
COMMON = ("/", "/queue", "/pools", "/costs", "/policies", "/store", "/login")
OF_JOB = (f"/jobs/{STORY}", f"/jobs/{STORY}/move")
PHONE, WIDE = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
axe = Axe()


def bad(page: Page) -> list[str]:
    found = axe.run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [f"{x['id']}: {x['nodes'][0]['html'][:200]}" for x in found if x["impact"] in ("serious", "critical")]


def look(page: Page, url: str) -> list[str]:
    """What is wrong with the page."""
    page.goto(url, wait_until="load")
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return bad(page) + ([f"{wide} pixels too wide"] if wide > 0 else [])


@pytest.mark.parametrize("size", ["empty", "small", "large"])
def test_pages_are_sound(request: pytest.FixtureRequest, browser: Browser, size: str) -> None:
    place: Dashboard = request.getfixturevalue(size)
    context = place.context(browser, viewport=WIDE, color_scheme="light")
    page = context.new_page()
    said = heard(page)
    paths = {"empty": COMMON, "small": COMMON + OF_JOB, "large": ("/", "/queue", "/costs", OF_JOB[0])}[size]
    found = {path: wrong for path in paths if (wrong := look(page, place.url + path))}
    context.close()
    assert (found, said) == ({}, [])


@pytest.mark.parametrize("shape", [PHONE, WIDE], ids=["phone", "wide"])
def test_pages_are_sound_in_the_dark(small: Dashboard, browser: Browser, shape: dict[str, int]) -> None:
    context = small.context(browser, viewport=shape, color_scheme="dark")
    page = context.new_page()
    paths = ("/costs", "/pools", OF_JOB[0]) if shape is WIDE else ("/", OF_JOB[1])
    found = {path: wrong for path in paths if (wrong := look(page, small.url + path))}
    context.close()
    assert found == {}


def test_trouble_is_a_page_too(small: Dashboard, browser: Browser) -> None:
    context = small.context(browser, "eve", Role.VIEWER)
    page = context.new_page()
    answers = [page.goto(f"{small.url}/store"), page.goto(f"{small.url}/jobs/nothing")]
    assert [x.status for x in answers if x is not None] == [403, 404]
    assert bad(page) == [] and "there is no job" in page.inner_text("main")
    context.close()


def test_the_list_has_pages_a_filter_and_an_order(large: Dashboard, browser: Browser) -> None:
    context = large.context(browser, viewport=WIDE)
    page = context.new_page()
    page.goto(large.url)
    assert page.locator("table.fleet tbody tr").count() == 100
    page.click("a[rel=next]")
    page.wait_for_url("**/?page=2")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "q"
    page.keyboard.type("owner:ada run=7")
    until(page, "document.querySelectorAll('table.fleet tbody tr').length < 100")
    owners = {x.inner_text() for x in page.locator("td.c-owner").all()}
    assert owners == {"ada"} and "q=owner%3Aada" in page.url
    page.reload()
    page.click("thead >> text=Cost")
    costs = [float(x.inner_text().strip("$<")) for x in page.locator("td.c-cost").all()]
    assert len(costs) > 5 and costs == sorted(costs, reverse=True)
    assert page.locator("th[aria-sort=descending]").inner_text() == "Cost"
    context.close()


def test_the_first_tab_skips_to_the_content_and_the_theme_is_kept(small: Dashboard, browser: Browser) -> None:
    context = small.context(browser, color_scheme="light")
    page = context.new_page()
    page.goto(small.url)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.click("#theme")
    page.goto(f"{small.url}/queue")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 24)"
    context.close()


def test_costs_are_added_up_beside_the_request(large: Dashboard, browser: Browser) -> None:
    context = large.context(browser)
    page = context.new_page()
    page.goto(f"{large.url}/costs?by=project")
    page.wait_for_selector("text=By project")
    rows = [x.inner_text().split("\t") for x in page.locator("table tbody tr").all()]
    assert {"genomics", "weather", "lab-12"} <= {r[0] for r in rows}
    total = float(page.locator("#sums b").first.inner_text().strip("$").replace(",", ""))
    assert sum(float(r[3].strip("$").replace(",", "")) for r in rows) == pytest.approx(total, abs=0.05)
    context.close()
