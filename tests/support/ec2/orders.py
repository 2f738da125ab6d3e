"""Short words for orders to the test EC2, for tests of it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError
from support.ec2.client import TestEC2

from spotsurfer.ports.clock import SystemClock

IMAGE = "ami-03cf127a"  # one that moto has from the start
ORDER: dict[str, Any] = {"ImageId": IMAGE, "InstanceType": "m6i.large", "MinCount": 1, "MaxCount": 1}
SPOT = {"InstanceMarketOptions": {"MarketType": "spot"}}
ACCOUNT = "123456789012"


def now() -> datetime:
    return SystemClock().now().astimezone(UTC)


def refused(code: str) -> Any:
    return pytest.raises(ClientError, match=f"\\({code}\\)")


def run(cloud: TestEC2, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = cloud.client("ec2").run_instances(**{**ORDER, **more})
    return answer


def one(cloud: TestEC2, **more: Any) -> str:
    return str(run(cloud, **more)["Instances"][0]["InstanceId"])


def shown(cloud: TestEC2, instance: str) -> dict[str, Any]:
    found: dict[str, Any] = cloud.client("ec2").describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]
    return found


def usual(server: TestEC2) -> None:
    """Nothing that a test has set holds any more."""
    server.order("rules", clear=True)
    for pool, market in (("*", "spot"), ("*", "on-demand"), ("us-east-1a/*", "spot")):
        server.order("capacity", pool=pool, market=market, count=None)
    server.order("set", pending_seconds=0, shutdown_seconds=0, unlisted_seconds=0, skew_seconds=0)


def session(cloud: TestEC2, role: str, policy: str = "") -> dict[str, Any]:
    more = {"Policy": policy} if policy else {}
    arn = f"arn:aws:iam::{ACCOUNT}:role/{role}"
    given = cloud.client("sts").assume_role(RoleArn=arn, RoleSessionName="a-session", **more)["Credentials"]
    return {
        "aws_access_key_id": given["AccessKeyId"],
        "aws_secret_access_key": given["SecretAccessKey"],
        "aws_session_token": given["SessionToken"],
    }
