"""The dialect of Google's metadata server, against a server that speaks it and that google-auth understands, too."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import google.auth.transport.requests
import pytest
from google.auth.compute_engine import _metadata
from spotsurfer_agent.control import metadata_google
from spotsurfer_agent.control.metadata_google import Google
from spotsurfer_agent.control.metadata_service import NoticeError
from spotsurfer_agent.control.notices import Watcher, make_dialect
from support.gce.metadata import FaultyServer, serve


@pytest.fixture
def service() -> Iterator[FaultyServer]:
    with serve(
        {"name": "ss-1f", "zone": "projects/1/zones/us-central1-a", "attributes": {"spotsurfer-notice-seconds": "120"}}
    ) as running:
        yield running


class Ticking:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def dialect(service: FaultyServer) -> Google:
    return Google(service.url)


def test_nothing_is_announced_and_a_vm_knows_its_name_and_zone(dialect: Google) -> None:
    assert dialect.notice() is None
    assert dialect.instance() == "ss-1f.us-central1-a"


def test_a_preemption_wakes_the_look_that_waits(service: FaultyServer, dialect: Google) -> None:
    assert dialect.notice() is None
    threading.Timer(0.8, service.metadata.tell, [{"preempted": "TRUE"}]).start()
    began = time.monotonic()
    said = dialect.notice()
    took = time.monotonic() - began
    assert said is not None and 0.7 < took < 3.0
    assert said.kind == "interruption"
    assert said.seconds_left == pytest.approx(120 + took, abs=0.2), "it counts from the request"


def test_without_the_early_notice_thirty_seconds_are_left(service: FaultyServer, dialect: Google) -> None:
    assert dialect.notice() is None
    service.metadata.tell({"preempted": "TRUE", "attributes": {}})
    said = dialect.notice()
    assert said is not None and said.seconds_left == pytest.approx(30, abs=1)


def test_what_the_first_look_finds_may_be_old(service: FaultyServer, dialect: Google) -> None:
    service.metadata.tell({"preempted": "TRUE"})
    said = dialect.notice()
    assert said is not None and said.seconds_left is None


def test_what_came_between_two_looks_counts_from_the_first(service: FaultyServer) -> None:
    clock = Ticking()
    dialect = Google(service.url, clock)
    assert dialect.notice() is None
    clock.now += 50.0
    service.metadata.tell({"preempted": "TRUE"})
    said = dialect.notice()
    assert said is not None and said.seconds_left == pytest.approx(70.0)


def test_much_metadata_of_others_hides_no_notice(service: FaultyServer, dialect: Google) -> None:
    assert dialect.notice() is None
    service.metadata.tell({"preempted": "TRUE", "attributes": {"windows-startup-script": "x" * 250_000}})
    assert dialect.notice() is not None


@pytest.mark.parametrize(
    ("event", "left"), [("MIGRATE_ON_HOST_MAINTENANCE", None), ("TERMINATE_ON_HOST_MAINTENANCE", 60.0), ("SOMETHING_NEW", 0.0)]
)
def test_a_live_migration_is_told_from_an_end(event: str, left: float | None, service: FaultyServer, dialect: Google) -> None:
    assert dialect.notice() is None
    service.metadata.tell({"maintenanceEvent": event})
    said = dialect.notice()
    assert (said is None) == event.startswith("MIGRATE")
    assert said is None or said.seconds_left == (left if left is None else pytest.approx(left, abs=1))


def test_other_changes_are_no_notice(service: FaultyServer, dialect: Google) -> None:
    assert dialect.notice() is None
    threading.Timer(0.1, service.metadata.tell, [{"virtualClock": {"driftToken": "1"}}]).start()
    assert dialect.notice() is None


@pytest.mark.parametrize("text", ["", "[]", "null", '{"name": "a"}', "{" * 5000])
def test_nonsense_is_trouble_and_the_next_look_does_not_wait(text: str, service: FaultyServer, dialect: Google) -> None:
    assert dialect.notice() is None
    service.instead = 200, text
    service.metadata.tell({})
    with pytest.raises(NoticeError):
        dialect.notice()
    service.instead = None
    began = time.monotonic()
    assert dialect.notice() is None
    assert time.monotonic() - began < 1.0


def test_a_service_that_is_gone_is_trouble(dialect: Google, service: FaultyServer) -> None:
    service.instead = 503, ""
    with pytest.raises(NoticeError, match="503"):
        dialect.notice()


def test_a_look_ends_by_itself(service: FaultyServer, dialect: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_google, "WAIT_SECONDS", 1)
    assert dialect.notice() is None
    began = time.monotonic()
    assert dialect.notice() is None
    assert 0.9 < time.monotonic() - began < 2.0


def test_the_watcher_takes_the_dialect_by_its_name(service: FaultyServer) -> None:
    watcher = Watcher(make_dialect("gcp", service.url))
    watcher.look()
    assert (watcher.instance, watcher.notice) == ("ss-1f.us-central1-a", None)
    service.metadata.tell({"preempted": "TRUE"})
    watcher.look()
    assert watcher.notice is not None and watcher.notice.kind == "interruption"


def test_googles_own_library_understands_the_server(service: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", service.url.removeprefix("http://"))
    request = google.auth.transport.requests.Request()
    root = f"{service.url}/computeMetadata/v1/"
    assert _metadata.get(request, "instance/name", root=root) == "ss-1f"
    every: Any = _metadata.get(request, "instance", root=root, recursive=True)
    assert every["zone"] == "projects/1/zones/us-central1-a"
