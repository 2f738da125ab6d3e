"""A Pub/Sub subscription to which a log sink writes system events, as terraform/gcp lays it.

Sources: AuditLog and LogEntry in the reference of Cloud Logging, "System event audit logs" of Compute Engine.
"""

from __future__ import annotations

import base64
import itertools
import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from spotsurfer_wire import clock

DEADLINE_SECONDS = 10.0  # for an acknowledgement; then a message is delivered again


@dataclass
class Events:
    """Messages until they are acknowledged: by number, the data and from when it is delivered."""

    waiting: dict[int, tuple[str, float]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, method: str, resource: str, number: int) -> None:
        """An entry of the audit log."""
        _, project, _, zone, _, _ = resource.split("/")
        entry = {
            "protoPayload": {
                "@type": "type.googleapis.com/google.cloud.audit.AuditLog",
                "authenticationInfo": {"principalEmail": "system@google.com"},
                "serviceName": "compute.googleapis.com",
                "methodName": method,
                "resourceName": resource,
                "request": {"@type": f"type.googleapis.com/{method}"},
            },
            "insertId": f"-{number}",
            "resource": {
                "type": "gce_instance",
                "labels": {"instance_id": str(number), "project_id": project, "zone": zone},
            },
            "timestamp": clock.utc().strftime("%Y-%m-%dT%H:%M:%S.%f000Z"),
            "severity": "INFO",
            "logName": f"projects/{project}/logs/cloudaudit.googleapis.com%2Fsystem_event",
            "operation": {"id": f"systemevent-{number}", "producer": method, "first": True, "last": True},
            "receiveTimestamp": clock.utc().strftime("%Y-%m-%dT%H:%M:%S.%f000Z"),
        }
        self.send(json.dumps(entry))

    def send(self, text: str) -> None:
        """Any message."""
        with self._lock:
            self.waiting[next(self._numbers)] = text, 0.0

    def pull(self, most: int) -> dict[str, Any]:
        """pubsub.projects.subscriptions.pull"""
        now = time.monotonic()
        with self._lock:
            due = [n for n, (_, since) in self.waiting.items() if now >= since][:most]
            for n in due:
                self.waiting[n] = self.waiting[n][0], now + DEADLINE_SECONDS
            return {"receivedMessages": [_received(n, self.waiting[n][0]) for n in due]} if due else {}

    def acknowledge(self, ids: Sequence[str]) -> dict[str, Any]:
        """pubsub.projects.subscriptions.acknowledge"""
        with self._lock:
            for each in ids:
                self.waiting.pop(int(each.removeprefix("ack-")), None)
        return {}


def _received(number: int, text: str) -> dict[str, Any]:
    data = base64.b64encode(text.encode()).decode()
    return {"ackId": f"ack-{number}", "message": {"data": data, "messageId": str(number), "publishTime": _now()}}


def _now() -> str:
    return clock.utc().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
