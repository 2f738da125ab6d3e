"""Ends of VMs from Google: a log sink writes system events to a Pub/Sub topic (terraform/gcp), and we read a subscription."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from spotsurfer_wire.google_vm import vm_id

from spotsurfer.model.job import InstanceId
from spotsurfer.ports.provider import Notice, NoticeKind, QueueMessage
from spotsurfer_providers.gcp.clients import Clients
from spotsurfer_providers.gcp.error_codes import calling

# ---- Entries: Cloud Logging's audit log of system events. Pure.
# Sources: "Understanding audit logs" and LogEntry of Cloud Logging, "System event audit logs" of Compute Engine.

METHODS: Mapping[str, tuple[NoticeKind, str]] = {
    "compute.instances.preempted": (NoticeKind.INTERRUPTION, "Google takes it"),
    "compute.instances.terminateOnHostMaintenance": (NoticeKind.INTERRUPTION, "Google stops it, for maintenance of its host"),
    "compute.instances.hostError": (NoticeKind.STATE, "its host failed"),
}


def read_entry(data: str, sent_now: datetime) -> list[Notice]:
    """The notices of a message. `sent_now`: the time of day by Google's clock. Raises ValueError for an unknown one."""
    try:
        entry = json.loads(base64.b64decode(data, validate=True))
        payload = entry["protoPayload"]
        method, parts = str(payload["methodName"]), str(payload["resourceName"]).split("/")
        age = max((sent_now - datetime.fromisoformat(entry["timestamp"])).total_seconds(), 0.0)
    except (KeyError, TypeError, binascii.Error) as e:
        raise ValueError(f"it is no entry of an audit log ({type(e).__name__}: {e})") from e
    if method not in METHODS:
        raise ValueError(f"there is no reader for {method!r}")
    if len(parts) != 6 or parts[2::2] != ["zones", "instances"]:
        raise ValueError(f"{'/'.join(parts)!r} is no VM")
    sign, text = METHODS[method]
    return [Notice(InstanceId(vm_id(parts[5], parts[3])), sign, age, text)]


# ---- Subscription
# A read does not wait, because the tick that reads has more to do; the next one gets what it misses. An unreadable message
# stays until Pub/Sub forgets it.

BATCH = 100


class Queue:
    """One subscription. Google's own library for it keeps streams open, and brings gRPC: two calls need neither."""

    def __init__(self, clients: Clients, subscription: str) -> None:
        self._gcp = clients
        self._path = f"/v1/{subscription}"

    def read(self) -> Sequence[QueueMessage]:
        """Present messages, at most a hundred."""
        with calling("subscriptions.pull"):
            answer = self._gcp.post("pubsub", f"{self._path}:pull", {"maxMessages": BATCH, "returnImmediately": True})
            now = parsedate_to_datetime(answer.headers["Date"])  # by Google's clock
            return [_letter(m, now) for m in answer.json().get("receivedMessages", [])]

    def settle(self, letters: Sequence[QueueMessage]) -> None:
        """Acknowledge them. One that is not acknowledged comes again, and is known then."""
        if letters:
            with calling("subscriptions.acknowledge"):
                self._gcp.post("pubsub", f"{self._path}:acknowledge", {"ackIds": [letter.receipt for letter in letters]})


def _letter(received: Mapping[str, Any], now: datetime) -> QueueMessage:
    receipt, message = str(received.get("ackId", "")), received.get("message") or {}
    try:
        return QueueMessage(receipt, read_entry(str(message.get("data", "")), now))
    except ValueError as e:
        return QueueMessage(receipt, (), f"message {message.get('messageId')} can't be read: {e}")
