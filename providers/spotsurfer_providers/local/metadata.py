"""What a box's metadata service says of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from spotsurfer_providers.local.imds import Metadata
from spotsurfer_providers.local.network import BOX_ADDRESS
from spotsurfer_providers.local.records import BoxRecord

ACCOUNT = "000000000000"
IMAGE = "ami-local"


def metadata_of(record: BoxRecord, now: datetime) -> Metadata:
    """Everything but the notices, which come later."""
    host_name = f"{record.id}.local"
    zone_id = f"{record.zone}-id"
    fixed = {
        "ami-id": IMAGE,
        "instance-id": record.id,
        "instance-type": record.instance_type,
        "instance-life-cycle": "spot" if record.market == "spot" else "on-demand",
        "placement/region": record.region,
        "placement/availability-zone": record.zone,
        "placement/availability-zone-id": zone_id,
        "local-ipv4": BOX_ADDRESS,
        "local-hostname": host_name,
        "hostname": host_name,
        "events/maintenance/history": "[]",
        "events/maintenance/scheduled": "[]",
        **record.metadata,
    }
    identity: dict[str, Any] = {
        "accountId": ACCOUNT,
        "architecture": "x86_64",
        "availabilityZone": record.zone,
        "imageId": fixed["ami-id"],
        "instanceId": fixed["instance-id"],
        "instanceType": record.instance_type,
        "pendingTime": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "privateIp": BOX_ADDRESS,
        "region": record.region,
        "version": "2017-09-30",
    }
    return Metadata(fixed=fixed, tags=record.tags, user_data=record.user_data, identity=identity)
