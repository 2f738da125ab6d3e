"""Queues as SQS has them where moto differs: changing one attribute keeps the policy, and JSON is written without spaces.

Both show as a drift that Terraform would mend for ever.
"""

from __future__ import annotations

import json
from typing import Any

from moto.sqs.models import Queue

_set = Queue._set_attributes
_read = Queue.attributes


def _keep_policy(queue: Queue, attributes: dict[str, Any], now: float | None = None) -> None:
    before = getattr(queue, "policy", None)
    _set(queue, attributes, now)
    if "Policy" not in attributes:
        queue.policy = before


def _compact(queue: Queue) -> dict[str, Any]:
    found: dict[str, Any] = _read.fget(queue)  # type: ignore[misc]
    if found.get("RedrivePolicy"):
        found["RedrivePolicy"] = json.dumps(json.loads(found["RedrivePolicy"]), separators=(",", ":"))
    return found


def install() -> None:
    """Once a process."""
    Queue._set_attributes = _keep_policy  # type: ignore[method-assign]
    Queue.attributes = property(_compact)  # type: ignore[assignment]
