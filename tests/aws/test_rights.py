"""Least rights, by the documents that Terraform made: what spotsurfer does is allowed, and little else is."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_providers.aws.settings import read_settings
from spotsurfer_providers.aws.store_access import session_policy
from spotsurfer_wire import object_keys
from support import aws
from support.ec2.client import REGION, TestEC2, serve
from support.iam.calls import Line
from support.iam.document import read
from support.iam.evaluate import Request, decide, trusts
from support.iam.rights import BUCKET, UNTOUCHED, UNUSED, Role, granted, idle, judged, make, roles, used
from support.keys import keys_of

from spotsurfer.model.market import Market, Pool
from spotsurfer.ports.provider import LaunchPlan

STORE = f"s3://{BUCKET}/store"
ARN = f"arn:aws:s3:::{BUCKET}"
EC2 = f"arn:aws:ec2:{REGION}:123456789012"
HERE = {"aws:RequestedRegion": REGION, "aws:SecureTransport": "true"}
OWN = {"aws:RequestTag/spotsurfer-fleet": "spotsurfer"}
PROFILE = "arn:aws:iam::123456789012:instance-profile/spotsurfer-machines"
MACHINE = {**HERE, **OWN, "ec2:InstanceType": "m6i.large", "ec2:InstanceProfile": PROFILE, "ec2:MetadataHttpTokens": "required"}


def _without(keys: Mapping[str, str], *names: str) -> dict[str, str]:
    return {k: v for k, v in keys.items() if k not in names}


# Who may not do what. Each line differs from something allowed by the one thing that its last word names.
REFUSED = [
    (
        "controller",
        "ec2:TerminateInstances",
        f"{EC2}:instance/i-1",
        {**HERE, "aws:ResourceTag/spotsurfer-fleet": "lab"},
        "another fleet's",
    ),
    ("controller", "ec2:TerminateInstances", f"{EC2}:instance/i-1", HERE, "nobody's machine"),
    (
        "controller",
        "ec2:StopInstances",
        f"{EC2}:instance/i-1",
        {**HERE, "aws:ResourceTag/spotsurfer-fleet": "spotsurfer"},
        "stop",
    ),
    ("controller", "ec2:CreateTags", f"{EC2}:instance/i-1", {**HERE, **OWN}, "adopt a machine by tagging it"),
    (
        "controller",
        "ec2:CreateTags",
        f"{EC2}:instance/i-1",
        {**HERE, **OWN, "ec2:CreateAction": "CreateVolume"},
        "tag at another act",
    ),
    ("controller", "ec2:RunInstances", f"{EC2}:instance/*", _without(MACHINE, *OWN), "a machine without our tag"),
    (
        "controller",
        "ec2:RunInstances",
        f"{EC2}:instance/*",
        {**MACHINE, "aws:RequestTag/spotsurfer-fleet": "lab"},
        "as another fleet",
    ),
    (
        "controller",
        "ec2:RunInstances",
        f"{EC2}:instance/*",
        {**MACHINE, "ec2:InstanceType": "p5.48xlarge"},
        "a type that is not allowed",
    ),
    (
        "controller",
        "ec2:RunInstances",
        f"{EC2}:instance/*",
        {**MACHINE, "ec2:InstanceProfile": f"{PROFILE}-admin"},
        "another profile",
    ),
    ("controller", "ec2:RunInstances", f"{EC2}:instance/*", {**MACHINE, "ec2:MetadataHttpTokens": "optional"}, "IMDSv1"),
    ("controller", "ec2:RunInstances", f"{EC2}:volume/*", {**HERE, **OWN, "ec2:Encrypted": "false"}, "a disk in the clear"),
    ("controller", "ec2:RunInstances", f"{EC2}:subnet/subnet-0fee", HERE, "another subnet"),
    ("controller", "ec2:RunInstances", f"{EC2}:security-group/sg-0fee", HERE, "another security group"),
    ("controller", "ec2:RunInstances", f"{EC2}:launch-template/lt-0fee", HERE, "another launch template"),
    ("controller", "ec2:RunInstances", f"{EC2}:key-pair/people", HERE, "a key pair nobody named"),
    (
        "controller",
        "ec2:RunInstances",
        f"{EC2}:network-interface/*",
        {**HERE, "ec2:Subnet": f"{EC2}:subnet/subnet-0fee"},
        "elsewhere",
    ),
    ("controller", "ec2:DescribeInstances", "*", {**HERE, "aws:RequestedRegion": "eu-west-1"}, "another region"),
    (
        "controller",
        "iam:PassRole",
        "arn:aws:iam::123456789012:role/admin",
        {"iam:PassedToService": "ec2.amazonaws.com"},
        "another role",
    ),
    (
        "controller",
        "iam:PassRole",
        "arn:aws:iam::123456789012:role/spotsurfer-machines",
        {"iam:PassedToService": "lambda.amazonaws.com"},
        "to Lambda",
    ),
    (
        "controller",
        "iam:PassRole",
        "arn:aws:iam::123456789012:role/spotsurfer-controller",
        {"iam:PassedToService": "ec2.amazonaws.com"},
        "its own",
    ),
    ("controller", "sts:AssumeRole", "arn:aws:iam::123456789012:role/admin", HERE, "another role"),
    ("controller", "s3:GetObject", f"{ARN}/other/x", HERE, "beside the store"),
    ("controller", "s3:PutBucketPolicy", ARN, HERE, "the bucket's policy"),
    ("controller", "s3:GetObject", "arn:aws:s3:::another/store/x", HERE, "another bucket"),
    ("controller", "sqs:ReceiveMessage", f"arn:aws:sqs:{REGION}:123456789012:spotsurfer-notices-unread", HERE, "another queue"),
    ("controller", "sqs:SendMessage", f"arn:aws:sqs:{REGION}:123456789012:spotsurfer-notices", HERE, "forge an event"),
    ("controller", "ssm:GetParameter", f"arn:aws:ssm:{REGION}:123456789012:parameter/lab/password", HERE, "another parameter"),
    ("machines", "s3:GetObject", f"{ARN}/store/jobs/j1/SPEC.json", HERE, "a job"),
    ("machines", "s3:GetObject", f"{ARN}/store/live/j1.1", HERE, "a report"),
    ("machines", "s3:PutObject", f"{ARN}/store/runtime/x", HERE, "replace the agent"),
    ("machines", "s3:PutObject", f"{ARN}/store/access/j1.1", HERE, "hand out access"),
    ("machines", "s3:ListBucket", ARN, HERE, "list"),
    ("machines", "sts:AssumeRole", "arn:aws:iam::123456789012:role/spotsurfer-job", HERE, "the whole job role"),
    (
        "machines",
        "ec2:TerminateInstances",
        f"{EC2}:instance/i-1",
        {**HERE, "aws:ResourceTag/spotsurfer-fleet": "spotsurfer"},
        "end machines",
    ),
    ("job", "s3:GetObject", f"{ARN}/store/access/j1.1", HERE, "sealed access"),
    ("job", "s3:PutObject", f"{ARN}/store/runtime/x", HERE, "replace the agent"),
    ("job", "s3:PutObject", f"{ARN}/store/controller/1.json", HERE, "the controller's log"),
    ("job", "s3:ListBucket", ARN, {**HERE, "s3:prefix": "elsewhere/"}, "list beside the store"),
]


@pytest.mark.parametrize(("role", "action", "resource", "context", "what"), REFUSED, ids=[f"{r[0]} {r[4]}" for r in REFUSED])
def test_refused(role: str, action: str, resource: str, context: Mapping[str, str], what: str) -> None:
    assert not decide(Request(action, resource, context), [roles()[role].policy]).allowed, what


def test_what_the_refusals_differ_from_is_allowed() -> None:
    """Else they could be refused for another reason, a slip of the pen among them."""
    policy = roles()["controller"].policy
    own = {**HERE, "aws:ResourceTag/spotsurfer-fleet": "spotsurfer"}
    assert decide(Request("ec2:RunInstances", f"{EC2}:instance/*", MACHINE), [policy]).allowed
    assert decide(Request("ec2:TerminateInstances", f"{EC2}:instance/i-1", own), [policy]).allowed
    assert decide(Request("ec2:RunInstances", f"{EC2}:volume/*", {**HERE, **OWN, "ec2:Encrypted": "true"}), [policy]).allowed
    assert decide(Request("ec2:CreateTags", f"{EC2}:volume/*", {**OWN, "ec2:CreateAction": "RunInstances"}), [policy]).allowed
    assert decide(Request("s3:GetObject", f"{ARN}/store/access/j1.1", HERE), [roles()["machines"].policy]).allowed


ATTEMPT = session_policy(STORE, "aws", "j1", 2, ["s3://reads/today/", "s3://reads/ref/genome.fa"])


@pytest.mark.parametrize(
    ("action", "resource", "allowed"),
    [
        ("s3:PutObject", f"{ARN}/store/{object_keys.live_key('j1', 2)}", True),
        ("s3:ListBucket", ARN, True),
        ("s3:GetObject", f"{ARN}/store/jobs/j1/SPEC.json", True),
        ("s3:GetObject", f"{ARN}/store/jobs/j2/SPEC.json", False),
        ("s3:GetObject", f"{ARN}/store/jobs/j11/SPEC.json", False),
        ("s3:PutObject", f"{ARN}/store/{object_keys.live_key('j1', 3)}", False),
        ("s3:PutObject", f"{ARN}/store/{object_keys.live_key('j1', 21)}", False),
        ("s3:PutObject", f"{ARN}/store/{object_keys.live_key('j2', 2)}", False),
        ("s3:GetObject", f"{ARN}/store/access/j1.2", False),
        ("s3:GetObject", "arn:aws:s3:::reads/today/1.fq", False),
    ],
)
def test_an_attempt_sees_its_own_job_alone(action: str, resource: str, allowed: bool) -> None:
    """The last one: `minimal` names no bucket of inputs, so the job role has none to give."""
    decision = decide(Request(action, resource, HERE), [roles()["job"].policy], read("session", ATTEMPT))
    assert decision.allowed is allowed, decision


VERBS = {
    "read": ("s3:GetObject", {}),
    "create": ("s3:PutObject", {"s3:if-none-match": "*", "s3:ObjectCreationOperation": "true"}),
    "overwrite": ("s3:PutObject", {"s3:ObjectCreationOperation": "true"}),
    "overwrite as known": ("s3:PutObject", {"s3:if-match": "etag", "s3:ObjectCreationOperation": "true"}),
    "begin in parts": ("s3:PutObject", {"s3:ObjectCreationOperation": "false"}),
    "delete": ("s3:DeleteObject", {}),
}


@pytest.mark.parametrize("verb", VERBS)
def test_the_session_policy_says_what_boxes_say(verb: str) -> None:
    """`keyrights` is what both are made of; here by an evaluator that knows IAM and nothing of us."""
    policy, rights = read("session", ATTEMPT), object_keys.rights_of_attempt("j1", 2)
    action, context = VERBS[verb]
    says = {"read": rights.may_read, "create": rights.may_create, "delete": rights.may_remove}.get(verb, rights.may_overwrite)
    for key in keys_of("j1", "j11", "other"):
        allowed = decide(Request(action, f"{ARN}/store/{key}", {**HERE, **context}), [roles()["job"].policy], policy).allowed
        assert allowed is says(key), (verb, key)


@pytest.mark.parametrize(
    ("role", "kind", "name", "good"),
    [
        ("machines", "Service", "ec2.amazonaws.com", True),
        ("machines", "AWS", "arn:aws:iam::123456789012:role/spotsurfer-controller", False),
        ("controller", "Service", "ec2.amazonaws.com", True),
        ("controller", "AWS", "arn:aws:iam::123456789012:role/spotsurfer-machines", False),
        ("job", "AWS", "arn:aws:iam::123456789012:role/spotsurfer-controller", True),
        ("job", "AWS", "arn:aws:iam::123456789012:role/spotsurfer-machines", False),
        ("job", "Service", "ec2.amazonaws.com", False),
        ("job", "AWS", "arn:aws:iam::999999999999:role/spotsurfer-controller", False),
    ],
)
def test_who_may_take_a_role(role: str, kind: str, name: str, good: bool) -> None:
    trust = read(role, roles()[role].trust)
    assert trusts(trust, Request("sts:AssumeRole", "*", principal=(kind, name))) is good


def test_documents_are_within_the_limits_of_iam() -> None:
    """6,144 characters of a managed policy, spaces not counted (IAM quotas): it has to hold with six zones, as here."""
    assert len(json.dumps(roles()["controller"].document, separators=(",", ":"))) <= 6144


# ---------------------------------------------------------------- what was really called


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sequence[Line], dict[str, Role]]]:
    """A short life of a controller, a machine and a job with these roles, and the log of it."""
    with aws.credentials(), serve(tmp_path_factory.mktemp("ec2")) as cloud:
        yield _play(cloud, tmp_path_factory.mktemp("play"))


def _play(cloud: TestEC2, folder: Path) -> tuple[Sequence[Line], dict[str, Role]]:
    ec2 = cloud.client("ec2")
    subnets = {s["AvailabilityZone"]: s["SubnetId"] for s in ec2.describe_subnets()["Subnets"]}
    group = ec2.create_security_group(GroupName="machines", Description="machines")["GroupId"]
    template = ec2.create_launch_template(LaunchTemplateName="machines", LaunchTemplateData={"Monitoring": {"Enabled": False}})
    ids = {"subnet": list(subnets.values()), "sg": [group], "lt": [template["LaunchTemplate"]["LaunchTemplateId"]]}
    made = roles(ids)
    make(cloud, made)
    cloud.client("s3").create_bucket(Bucket=BUCKET)
    queue = cloud.client("sqs").create_queue(QueueName="spotsurfer-notices")["QueueUrl"]
    settings = {
        "region": REGION,
        "subnets": subnets,
        "job_role_arn": made["job"].arn,
        "instance_profile": PROFILE,
        "security_groups": [group],
        "launch_template": ids["lt"][0],
        "image": "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64",
        "instance_types": ["m6i.large"],
        "root_volume_gib": 50,
        "queue_url": queue,
        "tags": {"spotsurfer-fleet": "spotsurfer"},
        "endpoint_url": cloud.endpoint,
    }
    _controller(cloud, settings, made, folder)
    return cloud.log(), made


def _take(cloud: TestEC2, role: Role, keys: Mapping[str, str]) -> dict[str, str]:
    given = cloud.client("sts", 1, **keys).assume_role(RoleArn=role.arn, RoleSessionName="play")["Credentials"]
    names = {
        "aws_access_key_id": "AccessKeyId",
        "aws_secret_access_key": "SecretAccessKey",
        "aws_session_token": "SessionToken",
    }
    return {ours: given[theirs] for ours, theirs in names.items()}


def _controller(cloud: TestEC2, settings: Mapping[str, Any], made: Mapping[str, Role], folder: Path) -> None:
    keys = _take(cloud, made["controller"], {})
    with aws.credentials({k.upper(): v for k, v in keys.items()}):
        provider = aws.with_settings(read_settings(settings), "family", folder, STORE)
        offers = provider.offers()
        assert offers
        for market in (Market.SPOT, Market.ON_DEMAND):
            pool = Pool("aws", REGION, f"{REGION}a", "m6i.large")
            tags = {"spotsurfer:job": "j1", "spotsurfer:attempt": "2"}
            view = provider.launch(LaunchPlan(secrets.token_hex(16), pool, market, "#!/bin/sh\n", tags))
            assert provider.describe().complete
            provider.terminate(view.id)
        _store(cloud, keys, ["store/runtime/x", "store/access/j1.2", "store/jobs/j1/SPEC.json"])
        cloud.client("sqs").send_message(QueueUrl=settings["queue_url"], MessageBody="{}")
        assert provider.witness is not None
        provider.witness.settle(provider.witness.read())
        job = provider.credentials("j1", 2, []).values
    machine = _take(cloud, made["machines"], {})
    for key in ("store/runtime/x", "store/access/j1.2"):
        cloud.client("s3", 1, **machine).get_object(Bucket=BUCKET, Key=key)
    words = {"aws_access_key_id": "access_key_id", "aws_secret_access_key": "secret_access_key", "aws_session_token": "token"}
    _store(
        cloud,
        {ours: job[theirs] for ours, theirs in words.items()},
        ["store/jobs/j1/head/1.json", f"store/{object_keys.live_key('j1', 2)}"],
    )


def _store(cloud: TestEC2, keys: Mapping[str, str], names: Sequence[str]) -> None:
    """As controller and agent use it: create, read, also what is not there, list, remove."""
    s3 = cloud.client("s3", 1, **keys)
    for name in names:
        s3.put_object(Bucket=BUCKET, Key=name, Body=b"1", IfNoneMatch="*")
        s3.get_object(Bucket=BUCKET, Key=name)
    with pytest.raises(s3.exceptions.NoSuchKey):
        s3.get_object(Bucket=BUCKET, Key="store/jobs/j1/absent")
    s3.list_objects_v2(Bucket=BUCKET, Prefix="store/jobs/j1/")
    s3.put_object(Bucket=BUCKET, Key="store/jobs/j1/partial/old", Body=b"1")
    s3.delete_object(Bucket=BUCKET, Key="store/jobs/j1/partial/old")


@pytest.mark.real
def test_every_call_is_allowed(played: tuple[Sequence[Line], dict[str, Role]]) -> None:
    found = list(judged(*played))
    callers = {str(line["principal"]["role"]).rpartition("-")[2] for line, _, _ in found}
    assert callers == {"controller", "machines", "job"}, "the log must show all three, or this proves nothing"
    bad = [f"{line['operation']}: {request} {decision.why}" for line, request, decision in found if not decision.allowed]
    assert bad == []


@pytest.mark.real
def test_nothing_is_allowed_that_is_never_used(played: tuple[Sequence[Line], dict[str, Role]]) -> None:
    _, made = played
    assert granted(made) - used(*played) == set(UNUSED), "grant less, or say here why it is needed"


@pytest.mark.real
def test_no_resource_is_named_that_is_never_touched(played: tuple[Sequence[Line], dict[str, Role]]) -> None:
    assert idle(*played) == set(UNTOUCHED), "name less, or say here why it is needed"


@pytest.mark.real
def test_the_log_is_really_judged(played: tuple[Sequence[Line], dict[str, Role]]) -> None:
    """Less rights than these, and the same log is refused."""
    log, made = played
    poorer = json.loads(json.dumps(made["controller"].document))
    poorer["Statement"] = [s for s in poorer["Statement"] if s["Sid"] != "LaunchDisk"]
    less = {**made, "controller": Role(made["controller"].arn, poorer, made["controller"].trust)}
    refused = {request.resource for _, request, decision in judged(log, less) if not decision.allowed}
    assert refused == {f"{EC2}:volume/*"}
