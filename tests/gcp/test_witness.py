"""The subscription to system events: what each kind says, messages that can't be read, and when one is gone."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_providers.gcp.preemption_queue import METHODS, read_entry
from support import gcp
from support.gce import events
from support.gce.cloud import PREEMPTED, PROJECT
from support.gce.errors import Refused
from support.gce.server import TestGce

from spotsurfer.model.errors import ProviderDenied, ProviderError, UnknownToProvider
from spotsurfer.ports.provider import NoticeKind, Witness

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
VM = f"projects/{PROJECT}/zones/us-central1-a/instances/ss-1"
PULL = "pubsub.projects.subscriptions.pull"


def entry(method: str = PREEMPTED, resource: str = VM, at: Any = "2026-01-01T12:00:00.123456789Z", **more: Any) -> str:
    payload = {"methodName": method, "resourceName": resource}
    return base64.b64encode(json.dumps({"protoPayload": payload, "timestamp": at, **more}).encode()).decode()


@pytest.mark.parametrize("method", METHODS)
def test_what_an_entry_says(method: str) -> None:
    (said,) = read_entry(entry(method), AT + timedelta(seconds=10))
    assert (said.instance, said.sign) == ("ss-1.us-central1-a", METHODS[method][0])
    assert said.age_seconds == pytest.approx(9.876544)


def test_its_age_is_never_negative() -> None:
    assert read_entry(entry(), AT - timedelta(seconds=5))[0].age_seconds == 0


POISON = {
    "no base64": "hello!",
    "no json": base64.b64encode(b"hello").decode(),
    "a number": base64.b64encode(b"7").decode(),
    "nothing": "",
    "no payload": base64.b64encode(b"{}").decode(),
    "another method": entry("compute.instances.insert"),
    "no VM": entry(resource=f"projects/{PROJECT}/global/images/x"),
    "no time": entry(at="soon"),
    "a time that is no text": entry(at=7),
    "a time without a zone": entry(at="2026-01-01T12:00:00"),
}


@pytest.mark.parametrize("data", POISON.values(), ids=POISON)
def test_poison_is_one_error_of_ours(data: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_entry(data, AT)


# ---- the subscription itself


@pytest.fixture
def witness(gce: TestGce, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Witness:
    monkeypatch.setattr(events, "DEADLINE_SECONDS", 0.0)
    made = gcp.provider(gce, tmp_path).witness
    assert made is not None
    return made


def test_without_a_subscription_there_is_no_witness(gce: TestGce, tmp_path: Path) -> None:
    assert gcp.provider(gce, tmp_path, preemptions=None).witness is None


def test_what_is_not_settled_comes_again(gce: TestGce, witness: Witness) -> None:
    gce.cloud.events.add(PREEMPTED, VM, 7)
    (first,), (second,) = witness.read(), witness.read()
    assert [s.sign for s in first.notices] == [s.sign for s in second.notices] == [NoticeKind.INTERRUPTION]
    assert first.notices[0].age_seconds < 5
    witness.settle([second])
    assert not gce.cloud.events.waiting and list(witness.read()) == []


def test_one_that_cant_be_read_hides_no_other(gce: TestGce, witness: Witness) -> None:
    gce.cloud.events.send("poison")
    gce.cloud.events.add(PREEMPTED, VM, 7)
    poison, good = witness.read()
    assert "can't be read" in poison.unreadable and not poison.notices
    assert [s.instance for s in good.notices] == ["ss-1.us-central1-a"]


def test_an_empty_look_is_one_call_and_settling_nothing_is_none(gce: TestGce, witness: Witness) -> None:
    assert list(witness.read()) == []
    witness.settle([])
    assert gce.calls == [PULL]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Refused(403, "forbidden", "no"), ProviderDenied),
        (Refused(404, "notFound", "Resource not found"), UnknownToProvider),
        (Refused(503, "backendError", "later"), ProviderError),
        (None, ProviderError),
    ],
)
def test_trouble_is_an_error_of_ours(answer: Refused | None, kind: type[ProviderError], gce: TestGce, witness: Witness) -> None:
    gce.answers[PULL] = [answer]
    with pytest.raises(kind, match=r"subscriptions\.pull"):
        witness.read()
