"""Events of EventBridge as sightings: one parser for each (source, detail-type). Pure.

Shapes: EC2 user guide, "Spot Instance interruption notices", "EC2 instance rebalance recommendations" and "state-change
notification"; AWS Health user guide, "Reference: AWS Health events Amazon EventBridge schema".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from spotsurfer.model.ids import InstanceId
from spotsurfer.ports.witness import Sighting, Sign

Said = tuple[str, Sign, str]  # instance, what, in words
Parser = Callable[[Mapping[str, Any]], list[Said]]


def read_event(body: str, sent_now: datetime) -> list[Sighting]:
    """What a message says. `sent_now`: the time of day by AWS's clock. Raises ValueError where it is no event that is known."""
    try:
        event = json.loads(body)
        at = datetime.fromisoformat(event["time"])
        key = (event["source"], event["detail-type"])
        said = PARSERS[key](event["detail"]) if key in PARSERS else None
        age = max((sent_now - at).total_seconds(), 0.0)
    except (KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"it is no event of EventBridge ({type(e).__name__}: {e})") from e
    if said is None:
        raise ValueError(f"there is no reader for {key[1]!r} of {key[0]}")
    return [Sighting(InstanceId(instance), sign, age, text) for instance, sign, text in said]


def _interruption(detail: Mapping[str, Any]) -> list[Said]:
    return [(_id(detail["instance-id"]), Sign.INTERRUPTION, f"AWS will {detail.get('instance-action', 'take')} it")]


def _rebalance(detail: Mapping[str, Any]) -> list[Said]:
    return [(_id(detail["instance-id"]), Sign.REBALANCE, "AWS recommends to leave it")]


def _state(detail: Mapping[str, Any]) -> list[Said]:
    return [(_id(detail["instance-id"]), Sign.STATE, str(detail["state"]))]


def _health(detail: Mapping[str, Any]) -> list[Said]:
    """Scheduled changes of instances: retirement, reboot, maintenance. Open issues and notes to the account name no end."""
    if detail["service"] != "EC2" or detail["eventTypeCategory"] != "scheduledChange":
        return []
    what = f"AWS Health: {detail['eventTypeCode']}"
    entities = [str(e["entityValue"]) for e in detail.get("affectedEntities") or []]
    return [(e.rpartition("/")[2], Sign.RETIREMENT, what) for e in entities if e.rpartition("/")[2].startswith("i-")]


def _id(value: object) -> str:
    if not isinstance(value, str) or not value.startswith("i-"):
        raise ValueError(f"{value!r} is no instance")
    return value


PARSERS: Mapping[tuple[str, str], Parser] = {
    ("aws.ec2", "EC2 Spot Instance Interruption Warning"): _interruption,
    ("aws.ec2", "EC2 Instance Rebalance Recommendation"): _rebalance,
    ("aws.ec2", "EC2 Instance State-change Notification"): _state,
    ("aws.health", "AWS Health Event"): _health,
}
