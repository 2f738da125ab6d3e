"""The provider `aws` against the test EC2: a network of three zones, and what a provider needs."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_providers.aws.provider import AwsProvider
from spotsurfer_providers.aws.settings import AwsSettings, read_settings
from support.ec2.client import ENVIRONMENT, REGION, TestEC2

from spotsurfer.ports.clock import Clock, SystemClock
from spotsurfer.ports.provider import ProviderHost

ROLE = "arn:aws:iam::123456789012:role/spotsurfer-job"
STORE = "s3://spotsurfer-tests/fleet"
_TRUSTED = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
TRUST = json.dumps({"Version": "2012-10-17", "Statement": [_TRUSTED]})


@functools.cache
def ground(endpoint: str) -> dict[str, Any]:
    """What Terraform would have made: subnets, an image, an instance profile, a queue. As a table of settings."""
    cloud = TestEC2({"endpoint": endpoint})
    ec2, iam = cloud.client("ec2"), cloud.client("iam")
    subnets = ec2.describe_subnets()["Subnets"]
    zones = {s["AvailabilityZone"]: s["SubnetId"] for s in subnets if s["AvailabilityZone"][-1] in "abc"}
    image = next(i for i in ec2.describe_images()["Images"] if i.get("Architecture") == "x86_64")
    iam.create_role(RoleName="machines", AssumeRolePolicyDocument=TRUST)
    iam.create_instance_profile(InstanceProfileName="machines")
    iam.add_role_to_instance_profile(InstanceProfileName="machines", RoleName="machines")
    queue = cloud.client("sqs").create_queue(QueueName="spotsurfer")["QueueUrl"]
    return {
        "region": REGION,
        "subnets": zones,
        "job_role_arn": ROLE,
        "instance_profile": "machines",
        "image": image["ImageId"],
        "instance_types": ["m6i.large", "c6i.large"],
        "queue_url": queue,
        "endpoint_url": endpoint,
    }


def settings(cloud: TestEC2, **changes: Any) -> AwsSettings:
    """Settings on that ground."""
    return read_settings({**ground(cloud.endpoint), **changes})


def provider(cloud: TestEC2, family: str, path: Path, clock: Clock | None = None, **changes: Any) -> AwsProvider:
    """A provider of a family of its own."""
    host = ProviderHost(family, path, STORE, clock or SystemClock())
    return AwsProvider(settings(cloud, **changes), host)


@contextmanager
def credentials(values: Mapping[str, str] = ENVIRONMENT) -> Iterator[None]:
    """The default chain finds these, and never asks this host's metadata service."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setenv(name, value)
        yield


def with_settings(chosen: AwsSettings, family: str, path: Path, store: str) -> AwsProvider:
    """A provider on other ground than `ground`."""
    return AwsProvider(chosen, ProviderHost(family, path, store, SystemClock()))


def connect_events(cloud: TestEC2, queue_url: str) -> None:
    """EventBridge to the queue, as terraform/aws/queue.tf does it."""
    sqs, events = cloud.client("sqs"), cloud.client("events")
    arn = sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    events.put_rule(Name="notices", EventPattern=json.dumps({"source": ["aws.ec2", "aws.health"]}))
    events.put_targets(Rule="notices", Targets=[{"Id": "notices", "Arn": arn}])
