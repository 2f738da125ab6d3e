"""The request of RunInstances as a value. Pure: the same plan and settings make the same request.

EC2 compares all parameters of a repeated ClientToken, so nothing here may depend on the time or on the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spotsurfer.model.errors import Invalid
from spotsurfer.model.market import Market
from spotsurfer.ports.provider import USER_DATA_BYTES_MAX, LaunchPlan
from spotsurfer_providers.aws.settings import AwsSettings

TOKEN_TAG = "spotsurfer:token"  # noqa: S105 - a tag's name
FAMILY_TAG = "spotsurfer:family"
SPOT = {
    "MarketType": "spot",
    "SpotOptions": {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"},
}


@dataclass(frozen=True, slots=True)
class ImageSeen:
    """A machine image. `root_device` is the name under which it mounts its root."""

    id: str
    root_device: str
    architecture: str


def run_instances(plan: LaunchPlan, settings: AwsSettings, image: ImageSeen | None, family: str) -> dict[str, Any]:
    """The request for exactly one instance. Raises Invalid for an order that EC2 would refuse anyway."""
    if len(plan.user_data.encode()) > USER_DATA_BYTES_MAX:
        raise Invalid(f"user-data takes {len(plan.user_data.encode())} bytes, EC2 allows {USER_DATA_BYTES_MAX}")
    if plan.pool.zone not in settings.subnets:
        raise Invalid(f"there is no subnet in {plan.pool.zone}; add one to [provider.aws] subnets")
    tags = _tags({**settings.tags, **plan.tags, FAMILY_TAG: family, TOKEN_TAG: plan.token})
    request: dict[str, Any] = {
        "ClientToken": plan.token,
        "MinCount": 1,
        "MaxCount": 1,
        "InstanceType": plan.pool.instance_type,
        "SubnetId": settings.subnets[plan.pool.zone],
        "UserData": plan.user_data,
        # Only programs on the machine itself may ask its metadata service, and only with a session of version 2.
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"},
        "InstanceInitiatedShutdownBehavior": "terminate",
        "TagSpecifications": [{"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")],
    }
    if plan.market is Market.SPOT:
        request["InstanceMarketOptions"] = SPOT
    return request | _of_settings(settings, image)


def _of_settings(settings: AwsSettings, image: ImageSeen | None) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    if settings.template is not None:
        chosen["LaunchTemplate"] = settings.template
    if image is not None:
        chosen["ImageId"] = image.id
    if settings.instance_profile is not None:
        kind = "Arn" if settings.instance_profile.startswith("arn:") else "Name"
        chosen["IamInstanceProfile"] = {kind: settings.instance_profile}
    if settings.security_groups:
        chosen["SecurityGroupIds"] = list(settings.security_groups)
    if settings.key_name is not None:
        chosen["KeyName"] = settings.key_name
    if settings.root_volume_gib is not None and image is not None:
        volume = {"VolumeSize": settings.root_volume_gib, "VolumeType": "gp3", "Encrypted": True, "DeleteOnTermination": True}
        chosen["BlockDeviceMappings"] = [{"DeviceName": image.root_device, "Ebs": volume}]
    return chosen


def _tags(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": k, "Value": v} for k, v in sorted(tags.items())]
