"""`spotsurfer doctor` on AWS: one sentence for what is wrong, and nothing made by looking."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from support import aws
from support.ec2.client import TestEC2

from spotsurfer.config.settings import Settings
from spotsurfer.doctor import checks
from spotsurfer.doctor.checks import Finding

pytestmark = pytest.mark.real


def look(cloud: TestEC2, path: Path, **changes: Any) -> Finding:
    table: Mapping[str, Any] = {**aws.ground(cloud.endpoint), **changes}
    written = {"controller": {"data_dir": path}, "store": {"url": aws.STORE}, "provider": {"name": "aws", "aws": table}}
    return checks.provider(Settings.model_validate(written))


def test_what_can_be_had_is_said_and_nothing_is_made(cloud: TestEC2, tmp_path: Path) -> None:
    before = cloud.machines()
    found = look(cloud, tmp_path)
    assert found.level == "ok", found
    assert "6 pools in 3 zones, spot from 0." in found.text
    assert cloud.machines() == before
    assert {c["error"] for c in cloud.log("ec2:RunInstances")} == {"DryRunOperation"}
    assert cloud.log("sqs:ReceiveMessage") == [], "a message that is read is hidden from the controller"


@pytest.mark.parametrize(
    ("rule", "words", "remedy"),
    [
        ({"action": "DescribeInstances", "code": "UnauthorizedOperation", "status": 403}, "DescribeInstances", "terraform/aws"),
        ({"action": "RunInstances", "code": "UnauthorizedOperation", "status": 403}, "dry run", "terraform/aws"),
        ({"service": "sts", "action": "AssumeRole", "code": "AccessDenied", "status": 403}, "AssumeRole", "terraform/aws"),
        ({"action": "*", "code": "RequestExpired", "status": 400}, "RequestExpired", "check this host's clock"),
    ],
    ids=["listing", "launch", "session", "clock"],
)
def test_a_right_that_is_missing_is_named(
    cloud: TestEC2, tmp_path: Path, rule: dict[str, Any], words: str, remedy: str
) -> None:
    cloud.order("rule", **rule, times=-1)
    found = look(cloud, tmp_path)
    assert (found.level, words in found.text, remedy in found.remedy) == ("fail", True, True), found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"regoin": "x"}, "regoin is an unknown key"),
        ({"instance_types": ["zz9.*"]}, "no instance type of us-east-1 matches zz9.*"),
        ({"image": "ami-0123456789abcdef0"}, "InvalidAMIID.NotFound"),
        ({"profile": "nobody"}, "[provider.aws] profile can't be used"),
    ],
    ids=["key", "types", "image", "profile"],
)
def test_a_wrong_setting_is_named(cloud: TestEC2, tmp_path: Path, change: dict[str, Any], words: str) -> None:
    found = look(cloud, tmp_path, **change)
    assert (found.level, words in found.text, found.remedy != "") == ("fail", True, True), found
