"""What the session of one attempt may touch: by an evaluator of policies, not by reading them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from spotsurfer_providers.aws.access import POLICY_CHARACTERS_MAX, bucket_and_prefix, session_policy
from support import aws
from support.ec2.client import TestEC2

from spotsurfer.model.errors import ConfigError

pytestmark = pytest.mark.real

URL = "s3://store/fleet"


def statements(inputs: tuple[str, ...] = ()) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(session_policy(URL, "aws", "asm-1", 2, inputs))["Statement"]
    return found


def test_an_attempt_writes_its_job_and_its_own_report_only() -> None:
    own, listing = statements()
    assert own["Resource"] == ["arn:aws:s3:::store/fleet/jobs/asm-1/*", "arn:aws:s3:::store/fleet/live/asm-1.000002"]
    assert (listing["Action"], listing["Resource"]) == ("s3:ListBucket", ["arn:aws:s3:::store"])


@pytest.mark.parametrize(
    ("address", "resource"),
    [
        ("s3://lab/reads.fq", "arn:aws:s3:::lab/reads.fq"),
        ("s3://lab/run1/", "arn:aws:s3:::lab/run1/*"),
        ("s3://lab/run*/x[12].fq", "arn:aws:s3:::lab/run*"),
        ("s3://lab/a#b.fq", "arn:aws:s3:::lab/a#b.fq"),
    ],
)
def test_inputs_are_read_and_nothing_else(address: str, resource: str) -> None:
    _, listing, read = statements((address, "https://example.org/x", "gs://other/y"))
    assert read["Resource"] == [resource]
    assert read["Action"] == ["s3:GetObject", "s3:GetObjectVersion"]
    assert listing["Resource"] == ["arn:aws:s3:::lab", "arn:aws:s3:::store"]


def test_many_inputs_are_summed_up_within_what_sts_takes() -> None:
    text = session_policy(URL, "aws", "asm-1", 2, [f"s3://lab/project/run-{i}/reads.fq" for i in range(500)])
    assert len(text) <= POLICY_CHARACTERS_MAX
    assert json.loads(text)["Statement"][2]["Resource"] == ["arn:aws:s3:::lab/project/run-*"]


@pytest.mark.parametrize("url", ["file:///srv/store", "gs://bucket/x", "s3:///x"])
def test_another_store_is_said_at_the_start(url: str) -> None:
    with pytest.raises(ConfigError, match="s3://bucket/prefix"):
        bucket_and_prefix(url)


def test_what_sts_is_asked(cloud: TestEC2, family: str, tmp_path: Path) -> None:
    given = aws.provider(cloud, family, tmp_path).credentials("asm-1", 2, ())
    asked = cloud.log("sts:AssumeRole")[0]["parameters"]
    assert asked["RoleArn"] == aws.ROLE
    assert asked["RoleSessionName"] == "asm-1.000002"
    assert int(asked["DurationSeconds"]) == 3600
    assert json.loads(asked["Policy"]) == json.loads(session_policy(aws.STORE, "aws", "asm-1", 2, ()))
    assert set(given.values) == {"access_key_id", "secret_access_key", "token"}
    assert given.expires_at.tzinfo is not None
