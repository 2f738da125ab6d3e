"""The AWS dialect against a server that speaks it, and the watcher over any dialect."""

# pyright: reportOptionalMemberAccess=false, reportOptionalOperand=false
from __future__ import annotations

import email.utils
import http.server
import json
import math
import re
import threading
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsurfer_agent.control import metadata_aws, metadata_service
from spotsurfer_agent.control.metadata_aws import Aws
from spotsurfer_agent.control.metadata_service import Answer, NoticeError, ServiceNotice
from spotsurfer_agent.control.notices import Watcher, make_dialect

SERVICE_NOW = datetime(2031, 5, 1, 12, 0, 0, tzinfo=UTC)  # nothing like our own clock
ROOT = "/latest/meta-data/"


class Service:
    """Instance metadata, version 2. `values` by path; `broken` is a status for everything."""

    def __init__(self) -> None:
        self.values = {ROOT + "instance-id": "i-0abc"}
        self.tokens: set[str] = set()
        self.given = 0
        self.broken = 0
        self.date = True
        self.asked: list[str] = []
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self, status: int, text: str = ""):
                self.send_response_only(status)
                if service.date:
                    self.send_header("Date", email.utils.format_datetime(SERVICE_NOW, usegmt=True))
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def do_PUT(self):
                if (
                    service.broken
                    or self.path != "/latest/api/token"
                    or not self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
                ):
                    return self.answer(service.broken or 400)
                service.given += 1
                token = f"token-{service.given}"
                service.tokens.add(token)
                return self.answer(200, token)

            def do_GET(self):
                service.asked.append(self.path)
                if service.broken:
                    return self.answer(service.broken)
                if self.headers.get("X-aws-ec2-metadata-token") not in service.tokens:
                    return self.answer(401)
                value = service.values.get(self.path)
                return self.answer(404) if value is None else self.answer(200, value)

            def log_message(self, format, *args):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def interrupt(self, seconds: float, action: str = "terminate") -> None:
        at = (SERVICE_NOW + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.values[ROOT + "spot/instance-action"] = json.dumps({"action": action, "time": at})


@pytest.fixture
def service():
    made = Service()
    yield made
    made.http.shutdown()
    made.http.server_close()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_nothing_is_announced(service):
    dialect = Aws(service.url)
    assert dialect.notice() is None
    assert dialect.notice() is None
    assert service.given == 1, "one token serves for hours"
    assert dialect.instance() == "i-0abc"


@pytest.mark.parametrize("action", ["terminate", "stop", "hibernate"])
def test_seconds_left_are_counted_on_the_services_own_clock(service, action):
    service.interrupt(120, action)
    said = Aws(service.url).notice()
    assert (said.kind, said.seconds_left) == ("interruption", 120.0)


def test_without_a_date_our_own_clock_must_do(service, monkeypatch):
    service.date = False
    service.interrupt(90)
    monkeypatch.setattr(metadata_service.clock, "utc", lambda: SERVICE_NOW - timedelta(seconds=10))
    assert Aws(service.url).notice().seconds_left == 100.0


@pytest.mark.parametrize("date", ["", "soon", "Tue, 09 Aug 99999999999999999999 17:07:32 GMT"])
def test_a_date_that_nobody_can_read_is_none(date, monkeypatch):
    monkeypatch.setattr(metadata_service.clock, "utc", lambda: SERVICE_NOW)
    assert Answer(200, "", date).seconds_until(SERVICE_NOW + timedelta(seconds=7)) == 7.0


def test_termination_time_alone_is_an_interruption(service):
    service.values[ROOT + "spot/termination-time"] = "2031-05-01T12:01:00Z"
    assert Aws(service.url).notice() == ServiceNotice("interruption", "2031-05-01T12:01:00Z", 60.0)


def test_termination_time_that_is_none_means_nothing(service):
    service.values[ROOT + "spot/termination-time"] = "none"
    assert Aws(service.url).notice() is None


def test_an_action_in_words_we_do_not_know_is_still_an_interruption(service):
    service.values[ROOT + "spot/instance-action"] = "going away"
    assert Aws(service.url).notice() == ServiceNotice("interruption", "going away", None)
    service.values[ROOT + "spot/instance-action"] = json.dumps({"action": "stop", "time": "soon"})
    assert Aws(service.url).notice().seconds_left is None


def test_what_is_no_order_to_leave_is_asked_after_less_often_and_kept_in_between(service, monkeypatch):
    now = [100.0]
    aws, asked, real = Aws(service.url, lambda: now[0]), [], Aws._get
    monkeypatch.setattr(Aws, "_get", lambda self, path: asked.append(path.rpartition("/")[2]) or real(self, path))
    service.values[ROOT + "events/recommendations/rebalance"] = "soon"
    for _ in range(10):
        assert aws.notice().kind == "rebalance"
        now[0] += 1.0
    assert [asked.count(x) for x in ("instance-action", "termination-time", "rebalance")] == [10, 2, 2]
    del service.values[ROOT + "events/recommendations/rebalance"]
    assert aws.notice() is None
    service.values[ROOT + "spot/instance-action"] = '{"action": "stop", "time": "2031-05-01T12:01:00Z"}'
    assert aws.notice().kind == "interruption", "that is asked after at each look"


def test_rebalance_comes_second(service):
    service.values[ROOT + "events/recommendations/rebalance"] = '{"noticeTime": "2031-05-01T11:59:00Z"}'
    assert Aws(service.url).notice().kind == "rebalance"
    service.interrupt(120)
    assert Aws(service.url).notice().kind == "interruption"


def test_a_token_that_the_service_forgot_is_replaced(service):
    dialect = Aws(service.url)
    dialect.notice()
    service.tokens.clear()
    service.interrupt(120)
    assert dialect.notice().kind == "interruption"
    assert service.given == 2


def test_a_token_is_replaced_before_it_ends(service):
    clock = Clock()
    dialect = Aws(service.url, clock)
    dialect.notice()
    clock.now += 20_000
    dialect.notice()
    assert service.given == 2


@pytest.mark.parametrize("status", [401, 403, 500, 503])
def test_a_service_that_fails_is_an_error_and_no_notice(service, status):
    dialect = Aws(service.url)
    dialect.notice()
    service.broken = status
    with pytest.raises(NoticeError):
        dialect.notice()


def test_no_service_at_all_is_an_error():
    with pytest.raises(NoticeError):
        Aws("http://127.0.0.1:1").notice()


def test_no_proxy_is_asked(service, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert Aws(service.url).notice() is None


# ---------------------------------------------------------------- watcher


class Script:
    def __init__(self, *said):
        self.said = list(said)

    def notice(self):
        now = self.said.pop(0)
        if isinstance(now, Exception):
            raise now
        return now

    def instance(self):
        raise NoticeError("no id")


def test_the_first_deadline_stands_and_the_id_is_of_the_content():
    clock = Clock()
    watcher = Watcher(
        Script(ServiceNotice("interruption", "12:00", 120.0), ServiceNotice("interruption", "12:00", 119.4)), clock
    )
    watcher.look()
    first = watcher.notice
    assert first.deadline_at == 220.0
    clock.now += 1
    watcher.look()
    assert watcher.notice is first


def test_another_interruption_has_another_id():
    watcher = Watcher(Script(ServiceNotice("interruption", "12:00", 120.0), ServiceNotice("interruption", "12:30", 120.0)))
    watcher.look()
    first = watcher.notice
    watcher.look()
    assert watcher.notice.id != first.id


def test_an_interruption_stays_whatever_is_said_later():
    watcher = Watcher(
        Script(ServiceNotice("interruption", "12:00", 120.0), None, NoticeError("down"), ServiceNotice("rebalance", "x", None))
    )
    for _ in range(4):
        watcher.look()
    assert watcher.notice.kind == "interruption"


def test_a_rebalance_may_be_taken_back_and_is_overridden():
    watcher = Watcher(
        Script(
            ServiceNotice("rebalance", "x", None),
            None,
            ServiceNotice("rebalance", "x", None),
            ServiceNotice("interruption", "y", 1.0),
        )
    )
    kinds = []
    for _ in range(4):
        watcher.look()
        kinds.append(watcher.notice and watcher.notice.kind)
    assert kinds == ["rebalance", None, "rebalance", "interruption"]


def test_an_unknown_dialect_names_those_that_exist():
    with pytest.raises(ValueError, match="aws"):
        make_dialect("abacus", "http://127.0.0.1:1")


HOSTILE = st.one_of(
    st.text(max_size=200),
    st.sampled_from(
        ["[" * 60_000, '{"time": ' + "9" * 60_000 + "}", '{"time": 1e999}', '{"time": {"a": []}}', "null", "[]", "\x00"]
    ),
    st.builds(lambda at: json.dumps({"action": "terminate", "time": at}), st.text(max_size=40)),
    st.datetimes().map(lambda at: json.dumps({"action": "stop", "time": at.isoformat()})),
)


@given(st.lists(st.tuples(st.sampled_from([200, 401, 404, 500]), HOSTILE, st.text(max_size=40)), min_size=8, max_size=8))
def test_whatever_the_service_says_is_a_notice_or_its_trouble(answers):
    """It may order the job away, as the cloud may anyway; it can't stop the agent, or make it say what nobody can read."""
    with pytest.MonkeyPatch.context() as patch:
        left = [*answers, (200, "i-0abc", "")]
        patch.setattr(metadata_aws, "ask", lambda *_: Answer(*(left.pop(0) if len(left) > 1 else left[0])))
        watcher = Watcher(Aws("http://127.0.0.1:1"))
        for _ in answers:
            watcher.look()
            assert re.fullmatch(r"[A-Za-z0-9._-]{0,64}", watcher.instance)
            if watcher.notice is not None:
                assert re.fullmatch(r"[0-9a-f]{16}", watcher.notice.id)
                assert watcher.notice.deadline_at is None or math.isfinite(watcher.notice.deadline_at)


@pytest.mark.parametrize("name", ["x" * 65, "i-0abc\nX-Header: 1", "../../x", "i 0", "ü", "\x00", ""])
def test_an_id_that_no_cloud_gives_is_not_taken(service, name):
    service.values[ROOT + "instance-id"] = name
    with pytest.raises(NoticeError, match="does not know the instance's id"):
        Aws(service.url).instance()
