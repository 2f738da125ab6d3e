"""The machines of the test EC2: what is known of each, which filters meet it, how EC2 describes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from support.ec2.errors import refusal

CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}
LIVING = ("pending", "running", "shutting-down", "stopping")  # they use capacity and quota
RECLAIMED = ("Server.SpotInstanceTermination", "Server.SpotInstanceTermination: Spot instance termination")
BY_USER = ("Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown")
BY_ITSELF = ("Client.InstanceInitiatedShutdown", "Client.InstanceInitiatedShutdown: Instance initiated shutdown")


@dataclass
class Machine:
    """One instance. `shape` is what RunInstances answered, but for what changes: state, tags, reason."""

    id: str
    region: str
    market: str  # "spot" | "on-demand"
    shape: dict[str, Any]
    reservation: Mapping[str, Any]
    launched_at: datetime
    visible_at: datetime  # listings and look-ups by id know it from then on
    user_data: str = ""  # decoded
    profile_role: str | None = None  # ARN of its instance profile's role
    shutdown: str = "stop"  # what a shutdown from inside does
    state: str = "pending"
    reason: tuple[str, str] | None = None
    ended_at: datetime | None = None
    impaired: bool = False

    @property
    def zone(self) -> str:
        """Availability zone."""
        return str(self.shape["Placement"]["AvailabilityZone"])

    @property
    def kind(self) -> str:
        """Instance type."""
        return str(self.shape["InstanceType"])

    @property
    def pool(self) -> tuple[str, str, str]:
        """Zone, type and market."""
        return self.zone, self.kind, self.market

    @property
    def arn(self) -> str:
        """Its ARN."""
        return f"arn:aws:ec2:{self.region}:{self.reservation['OwnerId']}:instance/{self.id}"

    def described(self, tags: Mapping[str, str]) -> dict[str, Any]:
        """As DescribeInstances shows it now."""
        made = {**self.shape, "State": state_of(self.state), "Tags": [{"Key": k, "Value": v} for k, v in tags.items()]}
        if self.market == "spot":
            made["InstanceLifecycle"] = "spot"
        if self.reason is not None:
            at = f" ({self.ended_at:%Y-%m-%d %H:%M:%S} GMT)" if self.ended_at else ""
            made["StateReason"] = {"Code": self.reason[0], "Message": self.reason[1]}
            made["StateTransitionReason"] = ("User initiated" if self.reason is BY_USER else self.reason[0]) + at
        if self.state == "terminated":
            for gone in ("PrivateIpAddress", "PublicIpAddress", "SubnetId", "VpcId", "IamInstanceProfile"):
                made.pop(gone, None)
            made |= {"NetworkInterfaces": [], "BlockDeviceMappings": [], "SecurityGroups": []}
        return made


def state_of(name: str) -> dict[str, Any]:
    """State as EC2 writes it."""
    return {"Code": CODES[name], "Name": name}


_FILTERS: Mapping[str, Callable[[Machine], str]] = {
    "instance-id": lambda m: m.id,
    "instance-state-name": lambda m: m.state,
    "instance-state-code": lambda m: str(CODES[m.state]),
    "instance-lifecycle": lambda m: m.market,
    "instance-type": lambda m: m.kind,
    "availability-zone": lambda m: m.zone,
    "client-token": lambda m: str(m.shape.get("ClientToken", "")),
    "image-id": lambda m: str(m.shape.get("ImageId", "")),
    "subnet-id": lambda m: str(m.shape.get("SubnetId", "")),
    "vpc-id": lambda m: str(m.shape.get("VpcId", "")),
    "key-name": lambda m: str(m.shape.get("KeyName", "")),
    "reservation-id": lambda m: str(m.reservation["ReservationId"]),
    "owner-id": lambda m: str(m.reservation["OwnerId"]),
    "iam-instance-profile.arn": lambda m: str(m.shape.get("IamInstanceProfile", {}).get("Arn", "")),
    "private-ip-address": lambda m: str(m.shape.get("PrivateIpAddress", "")),
}


def meets(machine: Machine, tags: Mapping[str, str], filters: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all filters meet it: any value of each. `*` and `?` are wildcards. Raises Refused for an unknown one."""
    return all(_meets_one(machine, tags, str(f["Name"]), [str(v) for v in f.get("Values", [])]) for f in filters)


def _meets_one(machine: Machine, tags: Mapping[str, str], name: str, wanted: Sequence[str]) -> bool:
    if name == "tag-key":
        return any(fnmatchcase(k, w) for k in tags for w in wanted)
    if name.startswith("tag:"):
        value = tags.get(name.removeprefix("tag:"))
        return value is not None and any(fnmatchcase(value, w) for w in wanted)
    if name not in _FILTERS:
        raise refusal("InvalidParameterValue", name="filter", value=name)
    return any(fnmatchcase(_FILTERS[name](machine), w) for w in wanted)
