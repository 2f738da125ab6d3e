"""What the session of one attempt may touch: by an evaluator of policies, not by reading them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from spotsurfer_providers.aws.store_access import POLICY_CHARACTERS_MAX, SCHEMES, session_policy
from spotsurfer_providers.bucket_rights import bucket_and_prefix
from spotsurfer_wire import object_keys
from spotsurfer_wire.input_addresses import OwnStore
from support import aws
from support.ec2.client import TestEC2
from support.iam.document import read
from support.iam.evaluate import Request, decide

from spotsurfer.model.errors import ConfigError, Invalid

URL = "s3://store/fleet"


def statements(inputs: tuple[str, ...] = ()) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(session_policy(URL, "aws", "asm-a", 2, inputs))["Statement"]
    return found


def test_an_attempt_writes_its_job_and_its_own_report_only() -> None:
    own, *_, listing = statements()
    assert own["Resource"] == ["arn:aws:s3:::store/fleet/jobs/asm-a/*", "arn:aws:s3:::store/fleet/live/asm-a.000002"]
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
    *_, listing, read = statements((address, "https://example.org/x", "gs://other/y"))
    assert read["Resource"] == [resource]
    assert read["Action"] == ["s3:GetObject", "s3:GetObjectVersion"]
    assert listing["Resource"] == ["arn:aws:s3:::lab", "arn:aws:s3:::store"]


def test_many_inputs_are_summed_up_within_what_sts_takes() -> None:
    text = session_policy(URL, "aws", "asm-a", 2, [f"s3://lab/project/run-{i}/reads.fq" for i in range(500)])
    assert len(text) <= POLICY_CHARACTERS_MAX
    assert json.loads(text)["Statement"][-1]["Resource"] == ["arn:aws:s3:::lab/project/run-*"]


@pytest.mark.parametrize(
    "inputs",
    [
        ["s3://store/fleet/jobs/other/chunks/ab/x"],
        ["s3://store/fleet/jobs/"],
        ["s3://store/*.fq"],
        ["s3://store/"],
        ["s3://store//fleet/access/asm-a.000003"],
        [f"s3://store/{'abfghjlr'[i % 8]}/{'x' * 20}{i}" for i in range(200)],
        [f"s3://store/fleet/{'job' if i % 2 else 'runtime'}{i}" for i in range(200)],
        ["s3://store/fleet/job", "s3://store/fleet/j", *(f"s3://store/fleet/reads/{i:0100d}" for i in range(200))],
    ],
    ids=range(8),
)
def test_no_input_opens_anything_of_the_store(inputs: list[str]) -> None:
    """Not by an address, nor because many are summed up by what they have in common."""
    text = session_policy(URL, "aws", "asm-a", 2, inputs)
    policy = read("session", text)
    assert len(text) <= POLICY_CHARACTERS_MAX
    for key in ("jobs/other/x", "live/other.000001", "access/asm-a.000002", "runtime/x", "controller/00000001.json", "pulse"):
        assert not decide(Request("s3:GetObject", f"arn:aws:s3:::store/fleet/{key}"), [policy]).allowed, key
    for address in inputs:
        wanted = f"arn:aws:s3:::{address.removeprefix('s3://')}"
        theirs = OwnStore(URL).holds(address)
        assert decide(Request("s3:GetObject", wanted), [policy]).allowed is not theirs, address


def test_a_job_that_works_in_a_folder_reads_what_jobs_of_that_folder_were_sent() -> None:
    scope = object_keys.home_scope("ada", "/home/ada/wf")
    policy = read("session", session_policy(URL, "aws", "asm-a", 2, ["s3://lab/reads.fq"], scope))
    there = f"arn:aws:s3:::store/fleet/{object_keys.home_file_key(scope, 'a' * 64)}"
    elsewhere = f"arn:aws:s3:::store/fleet/{object_keys.home_file_key(object_keys.home_scope('bob', '/x'), 'a' * 64)}"
    assert decide(Request("s3:GetObject", there), [policy]).allowed
    assert not decide(Request("s3:GetObject", elsewhere), [policy]).allowed
    assert not decide(Request("s3:PutObject", there, {"s3:if-none-match": "*"}), [policy]).allowed
    assert not decide(Request("s3:DeleteObject", there), [policy]).allowed


LONGEST = f"s3://{'b' * 63}/{'p' * 20}"


@pytest.mark.parametrize("files", [1, 3])
def test_eight_buckets_with_the_longest_names_fit(files: int) -> None:
    """STS refused it each time, so a job that ran got no renewal and stood still."""
    inputs = [f"s3://{i}{'a' * 62}/{'k' * 300}/{n}.fq" for i in range(8) for n in range(files)]
    text = session_policy(LONGEST, "aws", "j" * 41 + "-abc123", 999_999, inputs)
    assert len(text) <= POLICY_CHARACTERS_MAX
    policy = read("session", text)
    for address in inputs:
        assert decide(Request("s3:GetObject", f"arn:aws:s3:::{address.removeprefix('s3://')}"), [policy]).allowed
        assert decide(Request("s3:ListBucket", f"arn:aws:s3:::{address[5:68]}"), [policy]).allowed
    for key in ("jobs/other/x", "live/other.000001", "access/other.000001", "runtime/x", "pulse"):
        own = f"arn:aws:s3:::{LONGEST.removeprefix('s3://')}/{key}"
        assert not decide(Request("s3:GetObject", own), [policy]).allowed, key


def test_six_buckets_of_a_usual_job_are_not_even_summed_up() -> None:
    inputs = [f"s3://{i}{'b' * 19}/project-of-the-lab/reads/" for i in range(6)]
    text = session_policy(f"s3://{'b' * 20}/store", "aws", "j" * 24 + "-abc123", 2, inputs)
    *_, listing, reading = json.loads(text)["Statement"]
    assert reading["Resource"] == [f"arn:aws:s3:::{x.removeprefix('s3://')}*" for x in inputs]
    assert len(listing["Resource"]) == 7


def test_more_than_fits_is_refused_with_the_remedy() -> None:
    inputs = [f"s3://{i:02d}{'a' * 61}/x" for i in range(12)]
    with pytest.raises(Invalid, match=r"12 buckets besides that of the store.*bring the inputs together in fewer buckets"):
        session_policy(LONGEST, "aws", "j" * 48, 1, inputs)


def test_a_denial_knows_a_job_by_the_end_of_its_id() -> None:
    """What it refuses is the same as with the whole id, for ids that are shorter than that, too."""
    for job in ("j", "jobs", "live", "assembly-of-reads-abc123"):
        policy = read("session", session_policy(URL, "aws", job, 2, []))
        absent = {"s3:if-none-match": "*"}
        for verb, key, given, allowed in (
            ("PutObject", f"jobs/{job}/chunks/ab/x", absent, True),
            ("PutObject", f"jobs/{job}/chunks/ab/x", {}, False),
            ("PutObject", f"jobs/{job}/head/00000001.json", {}, False),
            ("PutObject", f"jobs/{job}/log/000002/out-0-1", {}, True),
            ("PutObject", f"jobs/{job}/log/000001/out-0-1", {}, False),
            ("PutObject", f"jobs/{job}/in/log/000002/x", {}, False),
            ("PutObject", f"jobs/{job}/out/000003/log/000002/x", {}, False),
            ("PutObject", f"jobs/{job}/desired/000002.json", absent, False),
            ("PutObject", f"jobs/{job}/out/000002/desired/x", absent, True),
            ("PutObject", f"live/{job}.000002", {}, True),
            ("DeleteObject", f"jobs/{job}/log/000002/out-0-1", {}, True),
            ("DeleteObject", f"jobs/{job}/in/log/000002/x", {}, False),
        ):
            asked = Request(f"s3:{verb}", f"arn:aws:s3:::store/fleet/{key}", given)
            assert decide(asked, [policy]).allowed is allowed, (job, verb, key)


def test_the_longest_names_fit() -> None:
    """A bucket has 63 characters at most, a job's id 48."""
    url = f"s3://{'b' * 63}/{'p' * 20}"
    assert len(session_policy(url, "aws-us-gov", "j" * 48, 999_999, [])) <= POLICY_CHARACTERS_MAX
    assert len(session_policy(url, "aws", "j" * 39, 2, [f"s3://{'b' * 63}/reads/"])) <= POLICY_CHARACTERS_MAX


@pytest.mark.parametrize("url", ["file:///srv/store", "gs://bucket/x", "s3:///x"])
def test_another_store_is_said_at_the_start(url: str) -> None:
    with pytest.raises(ConfigError, match="s3://bucket/prefix"):
        bucket_and_prefix(url, SCHEMES)


@pytest.mark.real
def test_what_sts_is_asked(cloud: TestEC2, family: str, tmp_path: Path) -> None:
    provider = aws.provider(cloud, family, tmp_path)
    provider.check_inputs("asm-a", ["s3://lab/reads/"])
    with pytest.raises(Invalid, match="40 buckets"):
        provider.check_inputs("asm-a", [f"s3://lab-of-somebody-{i}/reads/" for i in range(40)])
    given = provider.credentials("asm-a", 2, ())
    [asked] = [call["parameters"] for call in cloud.log("sts:AssumeRole")]
    assert asked["RoleArn"] == aws.ROLE
    assert asked["RoleSessionName"] == "asm-a.000002"
    assert int(asked["DurationSeconds"]) == 3600
    assert json.loads(asked["Policy"]) == json.loads(session_policy(aws.STORE, "aws", "asm-a", 2, ()))
    assert set(given.values) == {"access_key_id", "secret_access_key", "token"}
    assert given.expires_at.tzinfo is not None
