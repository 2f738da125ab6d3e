"""Everything that a Terraform run could leave behind, as the cloud lists it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from support.ec2.client import TestEC2

GONE = ("terminated", "shutting-down")
# kind -> service and how its names are read
_LISTS: Mapping[str, tuple[str, Callable[[Any], list[str]]]] = {
    "bucket": ("s3", lambda c: [b["Name"] for b in c.list_buckets()["Buckets"]]),
    "queue": ("sqs", lambda c: c.list_queues().get("QueueUrls", [])),
    "rule": ("events", lambda c: [r["Name"] for r in c.list_rules()["Rules"]]),
    "role": ("iam", lambda c: [r["Arn"] for r in c.list_roles()["Roles"]]),
    "policy": ("iam", lambda c: [p["Arn"] for p in c.list_policies(Scope="Local")["Policies"]]),
    "profile": ("iam", lambda c: [p["Arn"] for p in c.list_instance_profiles()["InstanceProfiles"]]),
    "template": ("ec2", lambda c: [t["LaunchTemplateId"] for t in c.describe_launch_templates()["LaunchTemplates"]]),
    "group": ("ec2", lambda c: [g["GroupId"] for g in c.describe_security_groups()["SecurityGroups"]]),
    "endpoint": (
        "ec2",
        lambda c: [e["VpcEndpointId"] for e in c.describe_vpc_endpoints()["VpcEndpoints"] if e["State"] != "deleted"],
    ),
    "subnet": ("ec2", lambda c: [s["SubnetId"] for s in c.describe_subnets()["Subnets"]]),
    "vpc": ("ec2", lambda c: [v["VpcId"] for v in c.describe_vpcs()["Vpcs"]]),
    "volume": ("ec2", lambda c: [v["VolumeId"] for v in c.describe_volumes()["Volumes"]]),
    "machine": ("ec2", lambda c: [i["InstanceId"] for i in _machines(c) if i["State"]["Name"] not in GONE]),
    "parameter": (
        "ssm",
        lambda c: [p["Name"] for p in c.describe_parameters()["Parameters"] if not p["Name"].startswith("/aws/")],
    ),
    "files": ("efs", lambda c: [f["FileSystemId"] for f in c.describe_file_systems()["FileSystems"]]),
}


def inventory(cloud: TestEC2) -> set[str]:
    """Names of all there is, with their kinds before them."""
    return {f"{kind} {name}" for kind, (service, names) in _LISTS.items() for name in names(cloud.client(service))}


def _machines(ec2: Any) -> list[dict[str, Any]]:
    return [i for r in ec2.describe_instances()["Reservations"] for i in r["Instances"]]
