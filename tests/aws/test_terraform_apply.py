"""The examples against the test EC2, with the real terraform: made, looked at, planned again without a change, removed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_providers.aws.settings import AwsSettings, read_settings
from support.ec2.client import TestEC2, serve
from support.inventory import inventory
from support.terraform import Terraform
from support.tree import ROOT

from spotsurfer.config.settings import Settings, load_settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
IMAGE = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
RIGHTS = ROOT / "tests/aws/rights.json"


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestEC2]:
    monkeypatch.setenv("MOTO_IAM_LOAD_MANAGED_POLICIES", "true")  # AWS's own ones, of which the controller's machine gets one
    with serve(tmp_path / "ec2") as running:
        yield running


def _settings(text: str, folder: Path) -> tuple[Settings, AwsSettings]:
    """As the controller reads them."""
    path = folder / "config.toml"
    path.write_text(text)
    loaded = load_settings(path)
    return loaded, read_settings(loaded.provider.table_of("aws"))


def _plain(rights: Any) -> Any:
    """Ids that the cloud makes up become numbers in the order in which they are met."""
    seen: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        kind = found[1]
        return seen.setdefault(found[0], f"{kind}-{sum(k.startswith(kind) for k in seen) + 1:08x}")

    return json.loads(re.sub(r"\b(subnet|sg|lt)-[0-9a-f]{8,17}\b", number, json.dumps(rights, sort_keys=True)))


def test_minimal(cloud: TestEC2, tmp_path: Path) -> None:
    before = inventory(cloud)
    variables = {"image": IMAGE, "endpoint_url": cloud.endpoint, "bucket_force_destroy": True}
    example = Terraform(tmp_path, "terraform/aws/examples/minimal", cloud.endpoint)
    example.init()
    example.apply(**variables)
    settings, aws = _settings(example.raw("config"), tmp_path)
    assert settings.store.url is not None and settings.store.url.startswith("s3://")
    assert len(aws.subnets) == 6 and set(aws.tags) == {"spotsurfer-fleet"}
    assert example.drift(**variables) == ""

    documents = {n: {k: v if k == "role" else json.loads(v) for k, v in r.items()} for n, r in example.output("rights").items()}
    rights = _plain(documents)
    made = tmp_path / "rights.json"
    made.write_text(json.dumps(rights, indent=1, sort_keys=True) + "\n")
    assert rights == json.loads(RIGHTS.read_text()), f"where the rights changed on purpose: cp {made} {RIGHTS}"

    bucket = str(settings.store.url).split("/")[2]
    cloud.client("s3").put_object(Bucket=bucket, Key="store/jobs/x", Body=b"1")
    assert inventory(cloud) > before
    example.destroy(**variables)
    assert inventory(cloud) == before


def test_existing_fleet(cloud: TestEC2, tmp_path: Path) -> None:
    before = inventory(cloud)
    theirs = Terraform(tmp_path / "theirs", "tests/aws/roots/fleet", cloud.endpoint)
    theirs.init()
    theirs.apply()
    untouched = inventory(cloud)
    variables = {
        "fleet": "genomics",
        "types_parameter": "/genomics/instance-types",
        "image": IMAGE,
        "endpoint_url": cloud.endpoint,
    }
    ours = Terraform(tmp_path / "ours", "terraform/aws/examples/existing-fleet", cloud.endpoint)
    ours.init()
    ours.apply(**variables)
    _, aws = _settings(ours.raw("config"), tmp_path)
    assert set(aws.subnets) == {"us-east-1a", "us-east-1b"}
    assert aws.instance_types == ["m6i.large", "m6i.xlarge", "c6i.*"]
    known = cloud.client("ec2").describe_launch_templates()["LaunchTemplates"]
    assert [t["LaunchTemplateId"] for t in known] == [aws.launch_template], "theirs is used, and none is made"
    assert theirs.drift() == "", "ours changed what is theirs"
    assert ours.drift(**variables) == ""
    ours.destroy(**variables)
    assert inventory(cloud) == untouched
    theirs.destroy()
    assert inventory(cloud) == before


def test_everything(cloud: TestEC2, tmp_path: Path) -> None:
    before = inventory(cloud)
    root = Terraform(tmp_path, "tests/aws/roots/everything", cloud.endpoint)
    root.init()
    root.apply(image=IMAGE)
    settings, aws = _settings(root.raw("config"), tmp_path)
    assert settings.provider.name == "aws" and aws.placement_scores
    machine = cloud.client("ec2").describe_instances(InstanceIds=[root.output("controller_instance_id")])
    tags = {t["Key"] for t in machine["Reservations"][0]["Instances"][0]["Tags"]}
    assert "spotsurfer-fleet" not in tags, "its own role could end it"
    assert "nfs4" in root.output("efs_mount")
    assert root.drift(image=IMAGE) == ""
    root.destroy(image=IMAGE)
    assert inventory(cloud) == before
