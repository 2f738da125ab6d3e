"""The evaluator itself, on examples whose answers AWS's documentation gives (IAM User Guide, Amazon EC2 User Guide)."""

from __future__ import annotations

from typing import Any

import pytest
from support.iam.document import NotUnderstood, read
from support.iam.evaluate import Request, decide, trusts

ADA = {"aws:username": "ada"}


def _policy(*statements: dict[str, Any], version: str = "2012-10-17") -> Any:
    return read("p", {"Version": version, "Statement": list(statements)})


# "Amazon S3: Allows IAM users access to their S3 home directory, programmatically and in the console"
HOME = _policy(
    {
        "Effect": "Allow",
        "Action": "s3:ListBucket",
        "Resource": "arn:aws:s3:::bucket",
        "Condition": {"StringLike": {"s3:prefix": ["", "home/", "home/${aws:username}/*"]}},
    },
    {
        "Effect": "Allow",
        "Action": "s3:*",
        "Resource": ["arn:aws:s3:::bucket/home/${aws:username}", "arn:aws:s3:::bucket/home/${aws:username}/*"],
    },
)
# "AWS: Denies access to AWS based on the requested Region": NotAction with StringNotEquals
REGION = _policy(
    {"Effect": "Allow", "Action": "*", "Resource": "*"},
    {
        "Effect": "Deny",
        "NotAction": ["cloudfront:*", "iam:*", "route53:*", "support:*"],
        "Resource": "*",
        "Condition": {"StringNotEquals": {"aws:RequestedRegion": ["eu-central-1", "eu-west-1"]}},
    },
)
# "AWS: Allows MFA-authenticated users": Deny with NotAction and BoolIfExists
MFA = _policy(
    {"Effect": "Allow", "Action": "ec2:*", "Resource": "*"},
    {
        "Effect": "Deny",
        "NotAction": ["iam:ListUsers", "sts:GetSessionToken"],
        "Resource": "*",
        "Condition": {"BoolIfExists": {"aws:MultiFactorAuthPresent": "false"}},
    },
)
# EC2 User Guide, "Example: Work with instances": terminate only those with the tag; "Example: Launch instances": types
TAGGED = _policy(
    {
        "Effect": "Allow",
        "Action": ["ec2:StopInstances", "ec2:TerminateInstances"],
        "Resource": "arn:aws:ec2:us-east-1:111122223333:instance/*",
        "Condition": {"StringEquals": {"ec2:ResourceTag/purpose": "test"}},
    }
)
TYPES = _policy(
    {
        "Effect": "Deny",
        "Action": "ec2:RunInstances",
        "Resource": "arn:aws:ec2:us-east-1:111122223333:instance/*",
        "Condition": {"StringNotLike": {"ec2:InstanceType": ["t2.micro", "t2.s*"]}},
    },
    {"Effect": "Allow", "Action": "ec2:RunInstances", "Resource": "*"},
)
# "Tag resources during creation": ec2:CreateAction, and ForAllValues on aws:TagKeys
CREATE_TAGS = _policy(
    {
        "Effect": "Allow",
        "Action": "ec2:CreateTags",
        "Resource": "arn:aws:ec2:us-east-1:111122223333:*/*",
        "Condition": {
            "StringEquals": {"ec2:CreateAction": "RunInstances"},
            "ForAllValues:StringEquals": {"aws:TagKeys": ["environment", "webserver"]},
        },
    }
)
# "Granting a user permissions to pass a role to an AWS service"
PASS = _policy(
    {
        "Effect": "Allow",
        "Action": "iam:PassRole",
        "Resource": "arn:aws:iam::111122223333:role/RDS-*",
        "Condition": {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}},
    }
)
# "Condition operators": IP addresses, numbers, dates, Null
SOURCE = _policy(
    {"Effect": "Allow", "Action": "*", "Resource": "*", "Condition": {"IpAddress": {"aws:SourceIp": "203.0.113.0/24"}}}
)
NOT_SOURCE = _policy(
    {"Effect": "Allow", "Action": "*", "Resource": "*"},
    {
        "Effect": "Deny",
        "Action": "*",
        "Resource": "*",
        "Condition": {"NotIpAddress": {"aws:SourceIp": ["192.0.2.0/24", "203.0.113.0/24"]}},
    },
)
NUMBER = _policy(
    {
        "Effect": "Allow",
        "Action": "s3:ListBucket",
        "Resource": "*",
        "Condition": {"NumericLessThanEquals": {"s3:max-keys": "10"}},
    }
)
DATES = _policy(
    {
        "Effect": "Allow",
        "Action": "*",
        "Resource": "*",
        "Condition": {
            "DateGreaterThan": {"aws:CurrentTime": "2020-04-01T00:00:00Z"},
            "DateLessThan": {"aws:CurrentTime": "2020-06-30T23:59:59Z"},
        },
    }
)
NULL = _policy({"Effect": "Allow", "Action": "*", "Resource": "*", "Condition": {"Null": {"aws:TokenIssueTime": "true"}}})
# "Resource": a wildcard stays within its segment, but a * that ends one "can expand to match beyond the colon boundaries"
SEGMENTS = _policy({"Effect": "Allow", "Action": "sns:Publish", "Resource": "arn:aws:sns:*:111122223333:alarms"})
WITHIN = _policy({"Effect": "Allow", "Action": "sns:Publish", "Resource": "arn:aws:sns:eu-*-1:111122223333:alarms"})
# "ArnLike": each of the six parts by itself
ARN_LIKE = _policy(
    {
        "Effect": "Allow",
        "Action": "sqs:SendMessage",
        "Resource": "*",
        "Condition": {"ArnLike": {"aws:SourceArn": "arn:aws:sns:*:111122223333:alarms"}},
    }
)
# "Variables and tags": ${*} is a star and no wildcard; version 2008-10-17 has no variables
LITERAL = _policy({"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bucket/${*}.txt"})
OLD = _policy(
    {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bucket/${aws:username}"}, version="2008-10-17"
)

# S3 User Guide, "Enforce conditional writes on Amazon S3 buckets", Example 1; and the same as a denial of two conditions
CREATING = _policy(
    {
        "Effect": "Allow",
        "Action": "s3:PutObject",
        "Resource": "arn:aws:s3:::b/*",
        "Condition": {"Null": {"s3:if-none-match": "false"}},
    },
    {
        "Effect": "Allow",
        "Action": "s3:PutObject",
        "Resource": "arn:aws:s3:::b/*",
        "Condition": {"Bool": {"s3:ObjectCreationOperation": "false"}},
    },
)
NOT_OVER = _policy(
    {"Effect": "Allow", "Action": "s3:PutObject", "Resource": "arn:aws:s3:::b/*"},
    {
        "Effect": "Deny",
        "Action": "s3:PutObject",
        "NotResource": "arn:aws:s3:::*/free/*",
        "Condition": {"Null": {"s3:if-none-match": "true"}, "Bool": {"s3:ObjectCreationOperation": "true"}},
    },
)

I = "arn:aws:ec2:us-east-1:111122223333:instance/i-1"  # noqa: E741 - short, as in the documentation's tables


@pytest.mark.parametrize(
    ("policy", "action", "resource", "context", "allowed"),
    [
        (HOME, "s3:GetObject", "arn:aws:s3:::bucket/home/ada/x", ADA, True),
        (HOME, "s3:GetObject", "arn:aws:s3:::bucket/home/bob/x", ADA, False),
        (HOME, "s3:GetObject", "arn:aws:s3:::bucket/home/ada/x", {}, False),
        (HOME, "s3:ListBucket", "arn:aws:s3:::bucket", {**ADA, "s3:prefix": "home/ada/reads"}, True),
        (HOME, "s3:ListBucket", "arn:aws:s3:::bucket", {**ADA, "s3:prefix": "home/bob/"}, False),
        (HOME, "s3:ListBucket", "arn:aws:s3:::bucket", ADA, False),
        (HOME, "s3:GetObject", "arn:aws:s3:::bucket/home/anything", {"aws:username": "*"}, False),
        (REGION, "ec2:RunInstances", I, {"aws:RequestedRegion": "us-east-1"}, False),
        (REGION, "ec2:RunInstances", I, {"aws:RequestedRegion": "eu-west-1"}, True),
        (REGION, "iam:CreateRole", "*", {"aws:RequestedRegion": "us-east-1"}, True),
        (REGION, "ec2:RunInstances", I, {}, False),
        (MFA, "ec2:StopInstances", I, {"aws:MultiFactorAuthPresent": "false"}, False),
        (MFA, "ec2:StopInstances", I, {}, False),
        (MFA, "ec2:StopInstances", I, {"aws:MultiFactorAuthPresent": "true"}, True),
        (TAGGED, "ec2:TerminateInstances", I, {"ec2:ResourceTag/purpose": "test"}, True),
        (TAGGED, "ec2:terminateinstances", I, {"EC2:resourcetag/Purpose": "test"}, True),
        (TAGGED, "ec2:TerminateInstances", I, {"ec2:ResourceTag/purpose": "Test"}, False),
        (TAGGED, "ec2:TerminateInstances", I, {}, False),
        (TYPES, "ec2:RunInstances", I, {"ec2:InstanceType": "t2.small"}, True),
        (TYPES, "ec2:RunInstances", I, {"ec2:InstanceType": "t2.large"}, False),
        (TYPES, "ec2:RunInstances", "arn:aws:ec2:us-east-1::image/ami-1", {"ec2:InstanceType": "t2.large"}, True),
        (CREATE_TAGS, "ec2:CreateTags", I, {"ec2:CreateAction": "RunInstances", "aws:TagKeys": ["environment"]}, True),
        (CREATE_TAGS, "ec2:CreateTags", I, {"ec2:CreateAction": "RunInstances", "aws:TagKeys": ["environment", "x"]}, False),
        (CREATE_TAGS, "ec2:CreateTags", I, {"ec2:CreateAction": "RunInstances"}, True),
        (CREATE_TAGS, "ec2:CreateTags", I, {"aws:TagKeys": ["environment"]}, False),
        (PASS, "iam:PassRole", "arn:aws:iam::111122223333:role/RDS-x", {"iam:PassedToService": "ec2.amazonaws.com"}, True),
        (PASS, "iam:PassRole", "arn:aws:iam::111122223333:role/RDS-x", {"iam:PassedToService": "lambda.amazonaws.com"}, False),
        (PASS, "iam:PassRole", "arn:aws:iam::111122223333:role/Admin", {"iam:PassedToService": "ec2.amazonaws.com"}, False),
        (SOURCE, "s3:GetObject", "*", {"aws:SourceIp": "203.0.113.7"}, True),
        (SOURCE, "s3:GetObject", "*", {"aws:SourceIp": "203.0.114.7"}, False),
        (NOT_SOURCE, "s3:GetObject", "*", {"aws:SourceIp": "198.51.100.1"}, False),
        (NOT_SOURCE, "s3:GetObject", "*", {"aws:SourceIp": "192.0.2.9"}, True),
        (NUMBER, "s3:ListBucket", "*", {"s3:max-keys": "10"}, True),
        (NUMBER, "s3:ListBucket", "*", {"s3:max-keys": "11"}, False),
        (DATES, "x:Y", "*", {"aws:CurrentTime": "2020-05-01T00:00:00Z"}, True),
        (DATES, "x:Y", "*", {"aws:CurrentTime": "2020-07-01T00:00:00Z"}, False),
        (NULL, "x:Y", "*", {}, True),
        (NULL, "x:Y", "*", {"aws:TokenIssueTime": "2020-05-01T00:00:00Z"}, False),
        (SEGMENTS, "sns:Publish", "arn:aws:sns:eu-west-1:111122223333:alarms", {}, True),
        (SEGMENTS, "sns:Publish", "arn:aws:sns:eu-west-1:9:x:111122223333:alarms", {}, True),
        (SEGMENTS, "sns:Publish", "arn:aws:sns:eu-west-1:111122223333:alarms-2", {}, False),
        (WITHIN, "sns:Publish", "arn:aws:sns:eu-west-1:111122223333:alarms", {}, True),
        (WITHIN, "sns:Publish", "arn:aws:sns:eu-x:9:y-1:111122223333:alarms", {}, False),
        (ARN_LIKE, "sqs:SendMessage", "*", {"aws:SourceArn": "arn:aws:sns:eu-west-1:111122223333:alarms"}, True),
        (ARN_LIKE, "sqs:SendMessage", "*", {"aws:SourceArn": "arn:aws:sns:eu-west-1:9:111122223333:alarms"}, False),
        (LITERAL, "s3:GetObject", "arn:aws:s3:::bucket/*.txt", {}, True),
        (LITERAL, "s3:GetObject", "arn:aws:s3:::bucket/a.txt", {}, False),
        (CREATING, "s3:PutObject", "arn:aws:s3:::b/x", {"s3:if-none-match": "*", "s3:ObjectCreationOperation": "true"}, True),
        (CREATING, "s3:PutObject", "arn:aws:s3:::b/x", {"s3:ObjectCreationOperation": "true"}, False),
        (CREATING, "s3:PutObject", "arn:aws:s3:::b/x", {"s3:if-match": "e", "s3:ObjectCreationOperation": "true"}, False),
        (CREATING, "s3:PutObject", "arn:aws:s3:::b/x", {"s3:ObjectCreationOperation": "false"}, True),
        (NOT_OVER, "s3:PutObject", "arn:aws:s3:::b/x", {"s3:if-none-match": "*", "s3:ObjectCreationOperation": "true"}, True),
        (NOT_OVER, "s3:PutObject", "arn:aws:s3:::b/x", {"s3:ObjectCreationOperation": "true"}, False),
        (NOT_OVER, "s3:PutObject", "arn:aws:s3:::b/a/free/x", {"s3:ObjectCreationOperation": "true"}, True),
        (NOT_OVER, "s3:PutObject", "arn:aws:s3:::b/x", {"s3:ObjectCreationOperation": "false"}, True),
        (OLD, "s3:GetObject", "arn:aws:s3:::bucket/ada", ADA, False),
    ],
)
def test_documented_answers(policy: Any, action: str, resource: str, context: dict[str, Any], allowed: bool) -> None:
    assert decide(Request(action, resource, context), [policy]).allowed is allowed


def test_session_policy_only_takes_away() -> None:
    """ "Session policies": the session has what both the role's policies and the session's allow."""
    role = _policy({"Effect": "Allow", "Action": ["s3:GetObject", "s3:PutObject"], "Resource": "arn:aws:s3:::a/*"})
    session = _policy({"Effect": "Allow", "Action": "s3:*", "Resource": ["arn:aws:s3:::a/x/*", "arn:aws:s3:::b/*"]})

    def allowed(action: str, resource: str) -> bool:
        return decide(Request(action, resource), [role], session).allowed

    assert allowed("s3:GetObject", "arn:aws:s3:::a/x/1")
    assert not allowed("s3:GetObject", "arn:aws:s3:::a/y/1"), "the role may, the session may not"
    assert not allowed("s3:GetObject", "arn:aws:s3:::b/1"), "the session may, the role may not"
    assert not allowed("s3:DeleteObject", "arn:aws:s3:::a/x/1")


def test_bucket_policy_denies_what_is_not_tls() -> None:
    """ "Restrict access to only HTTPS requests" of the S3 User Guide."""
    role = _policy({"Effect": "Allow", "Action": "s3:*", "Resource": "*"})
    deny = {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": "arn:aws:s3:::a/*"}
    bucket = _policy({**deny, "Condition": {"Bool": {"aws:SecureTransport": "false"}}})
    plain = Request("s3:GetObject", "arn:aws:s3:::a/1", {"aws:SecureTransport": "false"})
    assert not decide(plain, [role], None, bucket).allowed
    assert decide(Request("s3:GetObject", "arn:aws:s3:::a/1", {"aws:SecureTransport": "true"}), [role], None, bucket).allowed


@pytest.mark.parametrize(
    ("principal", "who", "good"),
    [
        ({"AWS": "arn:aws:iam::111122223333:role/ctl"}, ("AWS", "arn:aws:iam::111122223333:role/ctl"), True),
        ({"AWS": "arn:aws:iam::111122223333:role/ctl"}, ("AWS", "arn:aws:iam::111122223333:role/other"), False),
        ({"AWS": "111122223333"}, ("AWS", "arn:aws:iam::111122223333:role/other"), True),
        ({"AWS": "arn:aws:iam::111122223333:root"}, ("AWS", "arn:aws:iam::444455556666:role/other"), False),
        ({"Service": "ec2.amazonaws.com"}, ("Service", "ec2.amazonaws.com"), True),
        ({"Service": "ec2.amazonaws.com"}, ("Service", "lambda.amazonaws.com"), False),
        ({"Service": "ec2.amazonaws.com"}, ("AWS", "arn:aws:iam::111122223333:role/ctl"), False),
    ],
)
def test_trust(principal: dict[str, str], who: tuple[str, str], good: bool) -> None:
    """ "AWS JSON policy elements: Principal"."""
    trust = _policy({"Effect": "Allow", "Principal": principal, "Action": "sts:AssumeRole"})
    assert trusts(trust, Request("sts:AssumeRole", "*", principal=who)) is good


@pytest.mark.parametrize(
    "statement",
    [
        {"Effect": "Allow", "Action": "*", "Resource": "*", "Condition": {"StringSortOf": {"aws:x": "y"}}},
        {"Effect": "Allow", "Action": "*", "Resource": "*", "Condition": {"ForSomeValues:StringLike": {"aws:x": "y"}}},
        {"Effect": "Perhaps", "Action": "*", "Resource": "*"},
        {"Effect": "Allow", "Action": "*", "Resource": "*", "Conditions": {}},
        {"Effect": "Allow", "Resource": "*"},
    ],
)
def test_what_is_not_understood_is_an_error(statement: dict[str, Any]) -> None:
    with pytest.raises(NotUnderstood):
        decide(Request("x:Y", "*", {"aws:x": "y"}), [_policy(statement)])
