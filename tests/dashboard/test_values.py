"""What pages compute before they print: lists, costs by then, drawings, sessions, cached reports."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from support.fake_service import START, FakeService, an_attempt

from spotsurfer.dashboard import costs, drawing, fleet, one_job, pools, words
from spotsurfer.dashboard.fleet import Asked
from spotsurfer.dashboard.sessions import COOKIE, LIVES, Sessions, cookie_of
from spotsurfer.model.access import Principal, Role
from spotsurfer.model.errors import Conflict
from spotsurfer.model.job import JobId, JobSpec
from spotsurfer.model.snapshot import SpotSeen
from spotsurfer.ports.service import JobStatus, Moment


def statuses(count: int) -> list[JobStatus]:
    service = FakeService()
    for n in range(count):
        service.submit(JobId(f"job-{n:03d}"), JobSpec(f"name{n % 3}", ("true",), tags={"run": str(n)}), {}, owner=f"o{n % 2}")
    phases = ("running", "queued", "held", "succeeded")
    return [replace(s, phase=phases[n % 4], usd_micros=n * 10_000) for n, s in enumerate(service.statuses.values())]


def test_every_phase_has_a_word_and_a_group() -> None:
    from spotsurfer.core.facts.attempt_view import PHASES

    assert set(words.GROUP_OF) == set(PHASES)
    assert set(words.GROUP_OF.values()) == set(words.GROUPS)


def test_a_list_is_filtered_counted_sorted_and_cut() -> None:
    jobs = statuses(250)
    found = fleet.fleet(jobs, Asked(page=3))
    assert (len(found.rows), found.pages, found.page, found.found, found.total) == (50, 3, 3, 250, 250)
    assert fleet.fleet(jobs, Asked(page=99)).page == 3
    assert fleet.fleet(jobs, Asked("owner:o1 RUN=7")).found == sum(1 for n in range(250) if n % 2 and str(n).startswith("7"))
    held = fleet.fleet(jobs, Asked(state="paused"))
    assert {s.phase for s in held.rows} == {"held"}
    assert held.counts["paused"] == held.found and held.counts["open"] == 188
    assert [s.usd_micros for s in fleet.fleet(jobs, Asked(sort="cost")).rows[:2]] == [2_490_000, 2_480_000]
    assert [s.usd_micros for s in fleet.fleet(jobs, Asked(sort="cost", backward=True)).rows[:2]] == [0, 10_000]
    assert fleet.fleet([], Asked("x")).pages == 1


@pytest.mark.parametrize("page", ["0", "-1", "²", "x", "", "9" * 30, "00"])
def test_nonsense_in_an_address_is_left_out(page: str) -> None:
    assert Asked.of({"page": page, "sort": "__class__", "state": "<", "q": "x" * 999}) == Asked("x" * 200)


def test_an_address_says_what_is_asked() -> None:
    asked = Asked.of({"q": "a&b=é", "sort": "cost", "dir": "back", "state": "open", "page": "2"})
    assert asked.url(page=3) == "/?q=a%26b%3D%C3%A9&state=open&sort=cost&dir=back&page=3"
    assert Asked().url() == "/"


def test_money_is_short() -> None:
    less = words.MINUS
    told = [words.dollars(x) for x in (0, 1, 9_999, 10_000, 1_234_567_890, -2_500_000, -1, None)]
    assert told == ["$0.00", "<$0.01", "<$0.01", "$0.01", "$1,234.57", f"{less}$2.50", f"{less}<$0.01", words.NOTHING]


def test_cost_by_then_grows_to_the_whole() -> None:
    (status,) = statuses(1)
    now = START + timedelta(hours=10)
    assert [one_job.cost_at(status, START + timedelta(hours=h), now) for h in (0, 5, 10)] == [0, 6172, 12345]


def test_a_life_is_drawn_with_its_marks() -> None:
    (status,) = statuses(1)
    ended = replace(an_attempt(JobId("job-000"), 1), released_at=START + timedelta(hours=2), reason="<b>")
    status = replace(status, attempts=[replace(status.attempts[0], attempt=ended)])
    moments = [
        Moment(START + timedelta(hours=1), JobId("job-000"), 1, k, "<i>") for k in ("notice", "saved", "moved", "alert", "fit")
    ]
    drawn = str(drawing.life(status, moments, START + timedelta(hours=4)))
    assert drawn.count('class="mark') == 4 and "<b>" not in drawn and "<i>" not in drawn
    assert 'x="0.00%" y="15" width="50.00%"' in drawn and 'x="25.00%"' in drawn


def test_nothing_to_draw_is_no_trouble() -> None:
    (status,) = statuses(1)
    none = replace(status, attempts=[])
    assert "svg" in drawing.life(none, [], status.job.submitted_at)
    assert "nothing is known" in drawing.chart("x", [drawing.Curve("x", [])], START, START, str)
    assert one_job.charts(none, [], None, START, START) == []
    assert drawing.columns([], "x") and drawing.spans([], "x") and drawing.bar(400.0)


def test_many_points_become_few_with_holes() -> None:
    points = [(START + timedelta(seconds=10 * n), float(n % 7)) for n in range(10_000) if not 4000 < n < 6000]
    found = drawing.thinned(points, START, points[-1][0], timedelta(minutes=3))
    assert len(found) < 300 and [v for _, v in found].count(None) == 1
    assert max(v for _, v in found if v is not None) == 6


def test_pools_are_those_offered_and_those_watched() -> None:
    seen = [SpotSeen(START, True), SpotSeen(START + timedelta(hours=60), False), SpotSeen(START + timedelta(hours=84), None)]
    (row,) = pools.rows(None, {"aws/a/x": seen}, START + timedelta(hours=96))
    assert [(round(a), round(b), kind) for a, b, kind in row.strip] == [(0, 25, "up"), (25, 50, "down"), (75, 25, "unknown")]
    assert row.up == pytest.approx(100 / 3)
    assert (row.spot, row.list_price, row.saves, row.lasts_hours) == (None, None, None, None)


# ---- Sessions


def test_a_session_ends_after_a_week() -> None:
    now = [START]
    sessions = Sessions(lambda: now[0])
    name, other = sessions.begin("t"), sessions.begin("u")
    assert (sessions.token(name), sessions.token(other), sessions.token("x"), sessions.token("")) == ("t", "u", None, None)
    now[0] += LIVES
    assert sessions.token(name) is None


def test_a_forms_key_is_one_persons_in_one_session() -> None:
    sessions = Sessions()
    ada, bob = Principal("ada", Role.USER, "proxy"), Principal("bob", Role.USER, "proxy")
    keys = {sessions.form_key(ada, ""), sessions.form_key(bob, ""), sessions.form_key(ada, "s"), Sessions().form_key(ada, "")}
    assert len(keys) == 4
    assert sessions.form_key(ada, "s") == sessions.form_key(ada, "s")


@pytest.mark.parametrize("header", [b"", b"=", b"\xff", b"a=b; c", f"{COOKIE}".encode(), b'x="'])
def test_odd_cookies_name_no_session(header: bytes) -> None:
    assert cookie_of(header) == ""


# ---- Reports


def test_a_report_is_computed_once_and_kept() -> None:
    service, calls, go = FakeService(), [], threading.Event()
    now = [datetime(2026, 3, 20, tzinfo=UTC)]
    service.now = now[0]
    months = costs.Months(lambda: now[0])

    def slowly(begins: datetime) -> object:
        calls.append(begins)
        go.wait(5)
        return service.report([], begins, None, "day")

    assert months.get("", slowly) is None and months.get("", slowly) is None  # type: ignore[arg-type]
    go.set()
    until = time.monotonic() + 5
    while (found := months.get("", slowly)) is None and time.monotonic() < until:  # type: ignore[arg-type]
        pass
    assert found is not None and calls == [datetime(2026, 3, 1, tzinfo=UTC)]
    assert months.get("", slowly) is found  # type: ignore[arg-type]
    now[0] += costs.FRESH
    go.clear()
    assert months.get("", slowly) is found, "an old one is shown meanwhile"  # type: ignore[arg-type]
    go.set()


def test_a_report_that_fails_says_why_and_is_tried_again() -> None:
    months, fails = costs.Months(lambda: START), [True]

    def compute(begins: datetime) -> object:
        if fails.pop():
            raise Conflict("not now")
        return FakeService().report([], begins, None, "day")

    with pytest.raises(Conflict):
        months.get("", compute)  # type: ignore[arg-type]
    fails.append(False)
    assert months.get("", compute) is not None  # type: ignore[arg-type]
