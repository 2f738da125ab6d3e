"""Calls that the test EC2 wrote down, as requests that IAM judges.

A call on several resources is a request for each. What its conditions may look at comes from the call's own parameters, by the
Service Authorization Reference: an instance has its type, profile and metadata options, a volume its encryption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from support.iam.evaluate import Request

Line = Mapping[str, Any]
Keys = dict[str, str | list[str]]


def requests_of(line: Line) -> Iterator[Request]:
    """What the call needs to be allowed."""
    for resource in line["resources"]:
        yield Request(str(line["action"]), str(resource["arn"]), _context(line, resource))
    if line["operation"] in ("GetObject", "HeadObject") and line["status"] == 404:
        # "If the object you request doesn't exist": 404 to who may list the bucket, 403 to others (API reference, GetObject).
        bucket = str(line["resources"][0]["arn"]).partition("/")[0]
        yield Request("s3:ListBucket", bucket, {"aws:SecureTransport": "true"})


def _context(line: Line, resource: Mapping[str, Any]) -> Keys:
    keys: Keys = {"aws:RequestedRegion": str(line["region"]), "aws:SecureTransport": "true"}
    conditions = dict(line.get("conditions") or {})
    asked = resource.get("request_tags", conditions.pop("aws:RequestTag", None)) or {}
    keys |= {f"aws:RequestTag/{k}": v for k, v in asked.items()}
    if asked:
        keys["aws:TagKeys"] = list(asked)
    for prefix in ("aws", "ec2") if line["service"] == "ec2" else ("aws",):
        keys |= {f"{prefix}:ResourceTag/{k}": v for k, v in (resource.get("tags") or {}).items()}
    keys |= {k: str(v) for k, v in conditions.items()}
    if line["action"] == "ec2:RunInstances":
        kind = str(resource["arn"]).split(":")[5].partition("/")[0]
        keys |= _LAUNCH.get(kind, lambda *_: {})(line["parameters"], str(resource["arn"]))
    return keys


def _instance(p: Mapping[str, Any], arn: str) -> Keys:
    account = ":".join(arn.split(":")[:2])
    profile = p.get("IamInstanceProfile", {})
    named = f"{account}:iam::{arn.split(':')[4]}:instance-profile/{profile.get('Name')}"
    options = p.get("MetadataOptions", {})
    found = {
        "ec2:InstanceType": p.get("InstanceType"),
        "ec2:InstanceProfile": profile.get("Arn") or (named if profile else None),
        "ec2:InstanceMarketType": p.get("InstanceMarketOptions", {}).get("MarketType", "on-demand"),
        "ec2:MetadataHttpTokens": options.get("HttpTokens"),
        "ec2:MetadataHttpPutResponseHopLimit": options.get("HttpPutResponseHopLimit"),
    }
    return {k: str(v) for k, v in found.items() if v is not None}


def _volume(p: Mapping[str, Any], arn: str) -> Keys:
    disks = [m["Ebs"] for m in p.get("BlockDeviceMappings", []) if "Ebs" in m]
    encrypted = bool(disks) and all(str(d.get("Encrypted")).lower() == "true" for d in disks)
    return {"ec2:Encrypted": str(encrypted).lower()}


def _interface(p: Mapping[str, Any], arn: str) -> Keys:
    base = arn.rsplit(":", 1)[0]
    return {"ec2:Subnet": f"{base}:subnet/{p['SubnetId']}"} if "SubnetId" in p else {}


_LAUNCH: Mapping[str, Callable[[Mapping[str, Any], str], Keys]] = {
    "instance": _instance,
    "volume": _volume,
    "network-interface": _interface,
}
