"""The dialect of Azure's Scheduled Events, against a server that answers with the documentation's own examples."""

from __future__ import annotations

import email.utils
import http.server
import json
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spotsurfer_agent.control import metadata_azure, metadata_service
from spotsurfer_agent.control.metadata_azure import Azure
from spotsurfer_agent.control.metadata_service import Answer, NoticeError, ServiceNotice
from spotsurfer_agent.control.notices import Watcher, make_dialect
from support.http_server import HttpServer, running

# "Scheduled Events for Linux VMs", query and properties of an event.
KINDS = ("Freeze", "Reboot", "Redeploy", "Preempt", "Terminate")
FIELDS = {
    "EventId", "EventType", "ResourceType", "Resources", "EventStatus", "NotBefore", "Description", "EventSource",
    "DurationInSeconds",
}  # fmt: skip
# Its "Example responses": two VMs are moved to another host while they run.
LIVE_MIGRATION = {
    "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
    "EventStatus": "Scheduled",
    "EventType": "Freeze",
    "ResourceType": "VirtualMachine",
    "Resources": ["WestNO_0", "WestNO_1"],
    "NotBefore": "Mon, 11 Apr 2026 22:26:58 GMT",
    "Description": "Virtual machine is being paused because of a memory-preserving Live Migration operation.",
    "EventSource": "Platform",
    "DurationInSeconds": 5,
}
# What `az vm simulate-eviction` makes, as a guide of Azure's to spot VMs prints it.
EVICTION = {
    "EventId": "C1BF8322-4CBF-4FC4-9C45-B40CF3106D0E",
    "EventStatus": "Scheduled",
    "EventType": "Preempt",
    "ResourceType": "VirtualMachine",
    "Resources": ["vm-spot"],
    "NotBefore": "Tue, 09 Aug 2022 17:07:32 GMT",
    "Description": "",
    "EventSource": "Platform",
    "DurationInSeconds": -1,
}
# The log of Azure's sample service: a user restarts the VM.
RESTART = {
    "EventId": "4CAEA225-A741-474D-A72E-428C86FCD853",
    "EventStatus": "Scheduled",
    "EventType": "Reboot",
    "ResourceType": "VirtualMachine",
    "Resources": ["flatcar-vm1"],
    "NotBefore": "Thu, 22 Jul 2021 04:50:17 GMT",
    "Description": "",
    "EventSource": "User",
    "DurationInSeconds": -1,
}


def before(event: dict[str, Any], seconds: float) -> datetime:
    return email.utils.parsedate_to_datetime(event["NotBefore"]) - timedelta(seconds=seconds)


def begun(event: dict[str, Any]) -> dict[str, Any]:
    return event | {"EventStatus": "Started", "NotBefore": ""}


class MetadataService(HttpServer):
    """Of the VM `name`; `status` and `instead` are answered in place of the truth."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.name = "vm-spot"
        self.time: datetime | None = datetime(2022, 8, 9, tzinfo=UTC)  # nothing like our own clock
        self.incarnation, self.events = 1, list[dict[str, Any]]()
        self.status, self.instead = 200, ""
        self.asked: list[str] = []

    def tell(self, *events: dict[str, Any]) -> None:
        for event in events:
            assert set(event) == FIELDS, "the documentation knows other fields"
            assert event["EventType"] in KINDS
            assert (event["EventStatus"], bool(event["NotBefore"])) in {("Scheduled", True), ("Started", False)}
        self.incarnation += 1
        self.events = list(events)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: MetadataService  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        url, service = urlsplit(self.path), self.server
        query = parse_qs(url.query)
        service.asked.append(url.path)
        events = url.path == "/metadata/scheduledevents"
        if self.headers.get("Metadata") != "true" or "X-Forwarded-For" in self.headers:
            self._reply(400, '{"error": "Bad request. Required metadata header not specified"}')
        elif query.get("api-version") != ["2020-07-01" if events else "2021-02-01"]:
            self._reply(400, '{"error": "Bad request. api-version is invalid or was not specified in the request."}')
        elif service.instead or service.status != 200:
            self._reply(service.status, service.instead)
        elif events:
            self._reply(200, json.dumps({"DocumentIncarnation": service.incarnation, "Events": service.events}))
        elif url.path == "/metadata/instance/compute/name" and query.get("format") == ["text"]:
            self._reply(200, service.name)
        else:
            self._reply(404, '{"error": "Not found"}')

    def do_POST(self) -> None:
        raise AssertionError("an approval lets Azure take the VM sooner")

    def _reply(self, status: int, text: str) -> None:
        self.send_response_only(status)
        if self.server.time is not None:
            self.send_header("Date", email.utils.format_datetime(self.server.time, usegmt=True))
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


@pytest.fixture
def service() -> Iterator[MetadataService]:
    with running(MetadataService()) as server:
        yield server


@pytest.fixture
def dialect(service: MetadataService) -> Azure:
    return Azure(service.url)


def test_nothing_is_announced_and_a_vm_knows_its_name(service: MetadataService, dialect: Azure) -> None:
    assert dialect.notice() is None
    assert dialect.notice() is None
    assert dialect.instance() == "vm-spot"
    assert len(service.asked) == 3, "the name does not change, and five requests in a second are the most"


def test_an_eviction_is_an_interruption_by_azures_own_clock(service: MetadataService, dialect: Azure) -> None:
    service.time = before(EVICTION, 30)
    service.tell(EVICTION)
    said = dialect.notice()
    assert said is not None and said.kind == "interruption"
    assert said.seconds_left == pytest.approx(30, abs=0.5)


def test_without_a_date_our_own_clock_must_do(
    service: MetadataService, dialect: Azure, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.time = None
    service.tell(EVICTION)
    monkeypatch.setattr(metadata_service.clock, "utc", lambda: before(EVICTION, 40))
    said = dialect.notice()
    assert said is not None and said.seconds_left == pytest.approx(40, abs=0.5)


def test_the_first_answer_may_take_two_minutes_and_what_it_took_is_not_lost(
    service: MetadataService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time that is left counts from the request, and the service's clock is that of the answer."""
    now, waited, real = [100.0], list[float](), metadata_azure.ask

    def slow(base: str, method: str, path: str, headers: dict[str, str], wait_seconds: float = 0.0) -> Answer:
        waited.append(wait_seconds)
        now[0] += 110.0 if "scheduledevents" in path else 0.0
        return real(base, method, path, headers, wait_seconds)

    monkeypatch.setattr(metadata_azure, "ask", slow)
    service.time = before(EVICTION, 30)
    service.tell(EVICTION)
    watcher = Watcher(Azure(service.url, lambda: now[0]), lambda: now[0])
    watcher.look()
    assert watcher.notice is not None and watcher.notice.deadline_at == pytest.approx(100 + 110 + 30)
    watcher.look()
    assert waited == [0, 120, 0]


@pytest.mark.parametrize("kind", ["Reboot", "Redeploy", "Preempt", "Terminate", "Something new"])
def test_each_kind_that_takes_the_machine_is_an_interruption(
    kind: str, service: MetadataService, dialect: Azure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "KINDS", (*KINDS, "Something new"))
    service.time = before(EVICTION, 600)
    service.tell(EVICTION | {"EventType": kind})
    said = dialect.notice()
    assert said is not None and said.kind == "interruption"
    assert said.seconds_left == pytest.approx(600, abs=0.5)


def test_a_pause_of_seconds_is_no_reason_to_leave(service: MetadataService, dialect: Azure) -> None:
    service.name = "WestNO_0"
    for event in (LIVE_MIGRATION, begun(LIVE_MIGRATION)):
        service.tell(event)
        assert dialect.notice() is None


def test_what_concerns_only_others_is_nothing(service: MetadataService, dialect: Azure) -> None:
    service.tell(EVICTION | {"Resources": ["vm-spot-2"]}, RESTART)
    assert dialect.notice() is None


def test_names_know_no_capitals(service: MetadataService, dialect: Azure) -> None:
    service.name = "VM-spot"
    service.tell(EVICTION | {"Resources": ["other", "vm-Spot"]})
    assert dialect.notice() is not None


def test_what_has_begun_leaves_no_time(service: MetadataService, dialect: Azure) -> None:
    service.tell(begun(EVICTION))
    said = dialect.notice()
    assert said is not None and said.seconds_left is None


def test_what_begins_early_is_told_anew(service: MetadataService) -> None:
    """Somebody approved it: the time that was left is not."""
    service.time = before(EVICTION, 600)
    service.tell(EVICTION | {"EventType": "Terminate"})
    watcher = Watcher(Azure(service.url))
    watcher.look()
    first = watcher.notice
    assert first is not None and first.deadline_at is not None
    watcher.look()
    assert watcher.notice is first
    service.tell(begun(EVICTION | {"EventType": "Terminate"}))
    watcher.look()
    assert watcher.notice is not None and watcher.notice.id != first.id and watcher.notice.deadline_at is None


@pytest.mark.parametrize("kind", ["Reboot", "Redeploy"])
def test_a_vm_that_comes_back_does_not_leave_for_what_it_comes_from(kind: str, service: MetadataService) -> None:
    """The event stays in the list for some minutes after it. One that begins while this agent looks counts."""
    service.name = "flatcar-vm1"
    event = RESTART | {"EventType": kind}
    service.tell(begun(event))
    back = Azure(service.url)
    assert back.notice() is None
    assert back.notice() is None
    service.tell(begun(event), begun(event | {"EventId": "next"}))
    assert back.notice() is not None


def test_of_several_the_one_counts_that_leaves_the_least_time(service: MetadataService, dialect: Azure) -> None:
    service.time = before(EVICTION, 30)
    later = email.utils.format_datetime(before(EVICTION, -600), usegmt=True)
    redeploy = EVICTION | {"EventId": "later", "EventType": "Redeploy", "NotBefore": later}
    for events in ((redeploy, EVICTION), (EVICTION, redeploy)):
        service.tell(*events)
        said = dialect.notice()
        assert said is not None and said.seconds_left == pytest.approx(30, abs=0.5)
    service.tell(redeploy, begun(EVICTION))
    said = dialect.notice()
    assert said is not None and said.seconds_left is None


@pytest.mark.parametrize("status", [400, 404, 410, 429, 500, 503])
def test_a_service_that_fails_is_an_error_and_no_notice(status: int, service: MetadataService, dialect: Azure) -> None:
    assert dialect.notice() is None
    service.status = status
    with pytest.raises(NoticeError, match=str(status)):
        dialect.notice()


@pytest.mark.parametrize("text", ["null", "[]", "{}", '{"Events": 1}', "{" * 5000, '{"Events": null}'])
def test_nonsense_is_trouble(text: str, service: MetadataService, dialect: Azure) -> None:
    assert dialect.notice() is None
    service.instead = text
    with pytest.raises(NoticeError):
        dialect.notice()


@pytest.mark.parametrize("name", ["x" * 65, "a\nb", "../../x", "", " ", "{}"])
def test_a_name_that_azure_gives_nobody_is_not_taken(name: str, service: MetadataService, dialect: Azure) -> None:
    service.name = name
    with pytest.raises(NoticeError, match="does not know the VM's name"):
        dialect.instance()


def test_no_proxy_is_asked(service: MetadataService, dialect: Azure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert dialect.notice() is None


def test_the_watcher_takes_the_dialect_by_its_name(service: MetadataService) -> None:
    watcher = Watcher(make_dialect("azure", service.url))
    watcher.look()
    assert (watcher.instance, watcher.notice) == ("vm-spot", None)
    service.tell(EVICTION)
    watcher.look()
    assert watcher.notice is not None and watcher.notice.kind == "interruption"


def odd_documents() -> st.SearchStrategy[str]:
    """Of each field both what it may be and what it may not; most events name this VM."""
    anything = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=6,
    )
    zones = st.sampled_from(["GMT", "-0000", "+2400", "+99999999999999", "-99999999999999999999", "nowhere"])
    years = st.sampled_from(["2022", "0", "9999", "99999999999999999999"])
    when = st.builds(lambda year, zone: f"Tue, 09 Aug {year} 17:07:32 {zone}", years, zones)
    event = st.fixed_dictionaries(
        {
            "EventId": st.text(max_size=5) | anything,
            "EventType": st.sampled_from(KINDS) | anything,
            "NotBefore": when | anything,
        },
        optional={"Resources": st.lists(st.just("vm") | anything, max_size=3) | anything},
    )
    named = event.map(lambda found: found | {"Resources": ["vm"]})
    events = st.lists(named | event | anything, max_size=3) | anything
    return st.text(max_size=50) | events.map(lambda found: json.dumps({"Events": found}))


@given(
    st.lists(
        st.tuples(
            st.sampled_from([200, 404, 500]),
            odd_documents(),
            st.sampled_from(["", "x", "Tue, 09 Aug 99999999999999999999 17:07:32 GMT"]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_whatever_the_service_says_is_a_notice_or_its_trouble(answers: list[tuple[int, str, str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        left = [(200, "vm", ""), *answers]
        patch.setattr(metadata_azure, "ask", lambda *_: Answer(*left.pop(0)))
        dialect = Azure("http://127.0.0.1:1")
        for _ in answers:
            try:
                said = dialect.notice()
            except NoticeError:
                continue
            assert said is None or isinstance(said, ServiceNotice)
            assert said is None or said.seconds_left is None or math.isfinite(said.seconds_left)
            assert re.fullmatch("vm", dialect.instance())
