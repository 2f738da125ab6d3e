"""The dialect of Google: `preempted` and `maintenance-event` of Compute Engine's metadata server, by long poll.

Sources: "Access the metadata server", "Spot VMs" and "Monitor and plan for a host maintenance event" of Compute Engine's
documentation. The service tells *that* the VM goes, not when: the notice's length was ordered with the VM, and stands in its
metadata.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from spotsurfer_wire import clock
from spotsurfer_wire.google_vm import NOTICE_ATTRIBUTE, NOTICE_SECONDS, vm_id

from spotsurfer_agent.control.facts import INTERRUPTION
from spotsurfer_agent.control.metadata_service import INSTANCE, NoticeError, ServiceNotice, ask

ALL = "/computeMetadata/v1/instance/?recursive=true"
HEADERS = {"Metadata-Flavor": "Google"}
MAINTENANCE_SECONDS = 60.0  # before the VM is stopped, at least
WAIT_SECONDS = 60  # for news; then it is asked again
AT_ONCE_SECONDS = 0.5  # an answer that took no longer did not wait for news
TAKEN, KEPT = "TERMINATE_ON_HOST_MAINTENANCE", ("NONE", "MIGRATE_ON_HOST_MAINTENANCE")  # a live migration ends nothing


class Google:
    """Asks the metadata server at `base_url`. The first look answers at once, each later one when something has changed."""

    def __init__(self, base_url: str, now: Callable[[], float] = clock.monotonic) -> None:
        self._base_url, self._now = base_url, now
        self._etag = self._name = ""
        self._answered_at: float | None = None

    def notice(self) -> ServiceNotice | None:
        """The notice in force, None: there is none."""
        asked_at, answered_before = self._now(), self._answered_at
        seen = self._look()
        now = self._answered_at = self._now()
        if seen.get("preempted") == "TRUE":
            content, notice_seconds = "preempted", _notice_seconds(seen)
        elif (event := str(seen.get("maintenanceEvent", "NONE"))) not in KEPT:  # also one that we don't know
            content, notice_seconds = event, MAINTENANCE_SECONDS if event == TAKEN else 0.0
        else:
            return None
        if answered_before is None:
            return ServiceNotice(INTERRUPTION, content, None)  # it may have come long before this agent
        # An answer that came at once tells of a change since the one before; else the change woke us.
        since = answered_before if now - asked_at < AT_ONCE_SECONDS else now
        return ServiceNotice(INTERRUPTION, content, notice_seconds - (asked_at - since))  # from the request on

    def instance(self) -> str:
        """Name and zone, which the controller needs both for a call."""
        if not INSTANCE.fullmatch(self._name):
            raise NoticeError("the metadata service does not know the VM's name and zone")
        return self._name

    def _look(self) -> dict[str, Any]:
        news = f"&wait_for_change=true&timeout_sec={WAIT_SECONDS}&last_etag={self._etag}" if self._etag else ""
        self._etag = ""  # after a failure the next look waits for nothing
        answer = ask(self._base_url, "GET", ALL + news, HEADERS, WAIT_SECONDS if news else 0.0)
        if answer.status != 200:
            raise NoticeError(f"the metadata service answers {answer.status} to {ALL}")
        try:
            seen = json.loads(answer.text)
            self._name = vm_id(str(seen["name"]), str(seen["zone"]))
        except (ValueError, KeyError, TypeError, RecursionError) as e:
            raise NoticeError(f"the metadata service answers something that can't be read: {e}") from e
        self._etag = answer.etag
        return dict(seen)


def _notice_seconds(seen: dict[str, Any]) -> float:
    try:
        return max(0.0, float(seen["attributes"][NOTICE_ATTRIBUTE]))
    except (KeyError, TypeError, ValueError):
        return float(NOTICE_SECONDS)
