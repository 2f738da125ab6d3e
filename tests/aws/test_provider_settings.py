"""The table [provider.aws]: what is refused, in words that name the key and say what to write."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_providers.aws.settings import read_settings
from support.tree import ROOT

from spotsurfer.model.errors import ConfigError

GOOD: dict[str, Any] = {
    "region": "us-east-1",
    "subnets": {"us-east-1a": "subnet-0a1b2c3d"},
    "job_role_arn": "arn:aws:iam::123456789012:role/job",
    "instance_profile": "machines",
    "image": "ami-0a1b2c3d",
}


def test_defaults_are_sound() -> None:
    settings = read_settings(GOOD)
    assert settings.rebalance == "ignore"
    assert settings.template is None
    assert settings.machines_store == {"region": "us-east-1"}
    assert "m6i.*" in settings.instance_types


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"region": "Virginia"}, "region is 'Virginia', expected something like us-east-1"),
        ({"region": None}, "region is None"),
        ({"subnets": {}}, "subnets"),
        ({"subnets": {"eu-west-1a": "subnet-1"}}, "'eu-west-1a', which is no"),
        ({"subnets": {"us-east-1a": "vpc-1"}}, "subnets.us-east-1a is 'vpc-1'"),
        ({"job_role_arn": "spotsurfer"}, "arn:aws:iam::123456789012:role/"),
        ({"image": "debian"}, "ami-0a1b2c3d, or an SSM parameter"),
        ({"image": None}, "needs image and instance_profile, or a launch_template"),
        ({"instance_types": ["M6i.Large"]}, "instance_types.0 is 'M6i.Large'"),
        ({"rebalance": "panic"}, "rebalance"),
        ({"tags": {"spotsurfer:job": "x"}}, "taken"),
        ({"root_volume_gib": 40, "image": None, "launch_template": "lt-1"}, "needs image as well"),
        ({"regoin": "x"}, "regoin is an unknown key. Did you mean 'region'"),
    ],
    ids=str,
)
def test_wrong(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings({**GOOD, **change})
    assert words in str(caught.value)
    assert str(caught.value).startswith("[provider.aws]")


@pytest.mark.parametrize("key", ["region", "subnets", "job_role_arn"])
def test_missing(key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} is missing: `terraform output"):
        read_settings({k: v for k, v in GOOD.items() if k != key})


@pytest.mark.parametrize(
    ("name", "template"),
    [
        ("lt-0a1b", {"LaunchTemplateId": "lt-0a1b", "Version": "$Default"}),
        ("lt-0a1b:3", {"LaunchTemplateId": "lt-0a1b", "Version": "3"}),
        ("fleet:$Latest", {"LaunchTemplateName": "fleet", "Version": "$Latest"}),
    ],
)
def test_launch_template(name: str, template: dict[str, str]) -> None:
    assert read_settings({**GOOD, "launch_template": name}).template == template


def test_the_example_is_right_and_names_every_key() -> None:
    lines = Path(ROOT, "config.example.toml").read_text().splitlines()
    begin = lines.index(next(x for x in lines if x.startswith("##  [provider.aws]")))
    table = [x.removeprefix("##  ") for x in lines[begin:] if x.startswith("##  ")]
    read = tomllib.loads("\n".join(table))["provider"]["aws"]
    assert set(read) == set(type(read_settings(GOOD)).model_fields)
    read_settings(read)
