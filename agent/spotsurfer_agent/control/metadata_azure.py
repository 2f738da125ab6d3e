"""The dialect of Azure: Scheduled Events of the instance metadata service.

Sources: "Scheduled Events for Linux VMs" and "Azure Instance Metadata Service" of Azure's documentation. An event is never
approved: that would let Azure take the VM sooner, and with it every other VM that the event names.
"""

from __future__ import annotations

import email.utils
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from spotsurfer_wire import clock

from spotsurfer_agent.control.facts import INTERRUPTION
from spotsurfer_agent.control.metadata_service import INSTANCE, Answer, NoticeError, ServiceNotice, ask

EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
HEADERS = {"Metadata": "true"}
ENABLING_SECONDS = 120.0  # the first answer about events may take so long: it turns them on
PAUSE = "Freeze"  # of a few seconds: memory and open files stay
COMES_BACK = ("Reboot", "Redeploy")  # the VM starts again after it, and its agent, too


@dataclass(frozen=True, slots=True)
class _Event:
    """What may be ahead of this VM. `not_before` is empty once it has begun, in Azure's words "Started"."""

    id: str
    kind: str
    not_before: str


class Azure:
    """Asks the metadata service at `base_url`."""

    def __init__(self, base_url: str, now: Callable[[], float] = clock.monotonic) -> None:
        self._base_url, self._now = base_url, now
        self._name = ""
        self._past: frozenset[str] | None = None  # ids of the events that this VM comes from; None = nothing was heard yet

    def notice(self) -> ServiceNotice | None:
        """The notice in force, of several the one that leaves the least time; None: there is none."""
        asked_at = self._now()
        name = self.instance()
        answer = self._get(EVENTS, ENABLING_SECONDS if self._past is None else 0.0)
        took = self._now() - asked_at
        events = [e for e in _events(answer.text, name) if e.kind != PAUSE]
        if self._past is None:
            self._past = frozenset(e.id for e in events if e.kind in COMES_BACK and not e.not_before)
        said = [_said(e, answer, took) for e in events if e.id not in self._past]
        return min(said, key=lambda s: float("-inf") if s.seconds_left is None else s.seconds_left, default=None)

    def instance(self) -> str:
        """The VM's name. Its other id would be of no use: no call to Azure takes it."""
        if not self._name:
            name = self._get(NAME).text.strip()
            if not INSTANCE.fullmatch(name):
                raise NoticeError("the metadata service does not know the VM's name")
            self._name = name
        return self._name

    def _get(self, path: str, wait_seconds: float = 0.0) -> Answer:
        answer = ask(self._base_url, "GET", path, HEADERS, wait_seconds)
        if answer.status != 200:
            raise NoticeError(f"the metadata service answers {answer.status} to {path}")
        return answer


def _events(text: str, name: str) -> Iterator[_Event]:
    """The events that name this VM; those of its neighbours are told, too."""
    try:
        found = list(json.loads(text)["Events"])
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise NoticeError(f"the metadata service answers something that can't be read: {e}") from e
    for event in found:
        if isinstance(event, dict) and name.lower() in _lower(event.get("Resources")):  # Azure's names know no capitals
            yield _Event(_text(event, "EventId"), _text(event, "EventType"), _text(event, "NotBefore"))


def _lower(resources: Any) -> list[str]:
    return [r.lower() for r in resources if isinstance(r, str)] if isinstance(resources, list) else []


def _text(event: dict[str, Any], key: str) -> str:
    found = event.get(key)
    return found if isinstance(found, str) else ""


def _said(event: _Event, answer: Answer, took: float) -> ServiceNotice:
    """Each kind but a pause takes the machine, also one that we don't know. What has begun leaves no time."""
    content = f"{event.kind} {event.id} {event.not_before}"
    try:
        left = answer.seconds_until(email.utils.parsedate_to_datetime(event.not_before))
    except (ValueError, OverflowError):
        return ServiceNotice(INTERRUPTION, content, None)
    return ServiceNotice(INTERRUPTION, content, left + took)  # from the request on; the service's clock is the answer's
