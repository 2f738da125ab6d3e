"""Instances of EC2's answers as instances of ours. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from spotsurfer.model.ids import InstanceId
from spotsurfer.model.market import Market, Pool
from spotsurfer.ports.provider import InstanceState, InstanceView
from spotsurfer_providers.aws.orders import TOKEN_TAG

# "stopped" is no end: its disks are there and cost, and somebody may start it again.
STATES = {
    "pending": InstanceState.PENDING,
    "running": InstanceState.RUNNING,
    "shutting-down": InstanceState.STOPPING,
    "stopping": InstanceState.STOPPING,
    "stopped": InstanceState.STOPPING,
    "terminated": InstanceState.GONE,
}
# StateReason codes of an instance that AWS took (API reference, StateReason).
RECLAIMED = frozenset({"Server.SpotInstanceTermination", "Server.SpotInstanceShutdown"})
_WHEN = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")  # in StateTransitionReason, where EC2 says it


def view_of(found: Mapping[str, Any], region: str, now: datetime, first_gone_at: datetime | None = None) -> InstanceView:
    """One instance. `first_gone_at` is when its end was first seen. Raises KeyError, TypeError or ValueError if not whole."""
    tags = {t["Key"]: t["Value"] for t in found.get("Tags", [])}
    state = STATES[found["State"]["Name"]]
    launched_at = found["LaunchTime"]
    spot = found.get("InstanceLifecycle") == "spot"
    return InstanceView(
        id=InstanceId(found["InstanceId"]),
        token=tags.get(TOKEN_TAG) or found.get("ClientToken") or "",
        pool=Pool("aws", region, found["Placement"]["AvailabilityZone"], found["InstanceType"]),
        market=Market.SPOT if spot else Market.ON_DEMAND,
        state=state,
        launched_at=launched_at,
        ended_at=_ended_at(found, launched_at, first_gone_at or now) if state is InstanceState.GONE else None,
        reclaimed=state is InstanceState.GONE and (found.get("StateReason") or {}).get("Code") in RECLAIMED,
        tags=tags,
        address=found.get("PrivateIpAddress"),
        public_address=found.get("PublicIpAddress"),
    )


def _ended_at(found: Mapping[str, Any], launched_at: datetime, seen_at: datetime) -> datetime:
    """As EC2 says it, else when it was first seen: EC2 does not always tell."""
    said = _WHEN.search(found.get("StateTransitionReason") or "")
    at = datetime.strptime(said.group(1), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC) if said else seen_at
    return max(at, launched_at)
