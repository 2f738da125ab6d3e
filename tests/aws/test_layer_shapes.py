"""What the test EC2 answers, held to botocore's service models: nothing unknown to EC2, nothing missing that it demands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from botocore.model import OperationModel
from support import aws
from support.ec2 import wire
from support.ec2.client import TestEC2, serve
from support.ec2.errors import ERRORS
from support.ec2.handlers import HANDLERS
from support.ec2.shapes import check

from spotsurfer.model.market import Market
from spotsurfer.ports.provider import LaunchPlan

pytestmark = pytest.mark.real

IMAGE = "ami-03cf127a"  # one that moto has from the start
# "Error codes for the Amazon EC2 API" (docs.aws.amazon.com/ec2/latest/devguide/errors-overview.html), what is met here.
CLIENT = [
    "DryRunOperation",
    "IdempotentInstanceTerminated",
    "IdempotentParameterMismatch",
    "InvalidAMIID.Malformed",
    "InvalidAMIID.NotFound",
    "InvalidInstanceID.Malformed",
    "InvalidInstanceID.NotFound",
    "InvalidNextToken",
    "InvalidParameterCombination",
    "InvalidParameterValue",
    "InvalidSubnetID.NotFound",
    "MissingParameter",
    "RequestExpired",
    "UnknownParameter",
    "Unsupported",
]
REPORTED = ["InvalidUserData.Malformed"]  # not on that page; as people meet it
# What the provider calls and what has an answer.
MET = {
    ("ec2", "DescribeAvailabilityZones"),
    ("ec2", "DescribeImages"),
    ("ec2", "DescribeInstanceTypeOfferings"),
    ("ec2", "DescribeInstanceTypes"),
    ("ec2", "DescribeInstances"),
    ("ec2", "DescribeSpotPriceHistory"),
    ("ec2", "GetSpotPlacementScores"),
    ("ec2", "RunInstances"),
    ("ec2", "TerminateInstances"),
    ("pricing", "GetProducts"),
    ("service-quotas", "GetServiceQuota"),
    ("sqs", "DeleteMessageBatch"),
    ("sqs", "ReceiveMessage"),
    ("ssm", "GetParameter"),
    ("sts", "AssumeRole"),
}
SERVER = ["InsufficientInstanceCapacity", "InternalError", "RequestLimitExceeded", "ServiceUnavailable", "Unavailable"]


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestEC2]:
    with serve(tmp_path_factory.mktemp("ec2")) as running:
        ec2 = running.client("ec2")
        tags = [{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "b"}]}]
        order = {"ImageId": IMAGE, "InstanceType": "m6i.large", "MinCount": 2, "MaxCount": 2, "TagSpecifications": tags}
        ec2.run_instances(**order, InstanceMarketOptions={"MarketType": "spot"})
        gone = ec2.run_instances(**order)["Instances"][0]["InstanceId"]
        ec2.terminate_instances(InstanceIds=[gone])
        running.wait_for(lambda: len(running.machines("terminated")) == 1, "one that has ended")
        yield running


# What each action is asked; those that are not here are asked nothing.
ASKED: Mapping[str, Mapping[str, Any]] = {
    "RunInstances": {"ImageId": IMAGE, "InstanceType": "m6i.large", "MinCount": 1, "MaxCount": 1},
    "DescribeSpotPriceHistory": {"InstanceTypes": ["m6i.large"], "MaxResults": 5},
    "GetSpotPlacementScores": {"InstanceTypes": ["m6i.large"], "TargetCapacity": 1, "SingleAvailabilityZone": True},
}


@pytest.mark.parametrize("action", sorted(a for s, a in HANDLERS if s == "ec2"))
def test_every_answer_is_one_that_ec2_could_give(action: str, cloud: TestEC2) -> None:
    asked = dict(ASKED.get(action, {}))
    if action == "TerminateInstances":
        asked = {"InstanceIds": [cloud.machines("running")[0]["id"]]}
    answer = raw(cloud, action, asked)
    assert answer.status_code == 200, answer.text
    op = wire.operation("ec2", action)
    seen = check(op, answer.text)
    assert len(seen) > 1, "an empty answer proves nothing"


def test_the_check_would_see_a_word_that_ec2_does_not_know(cloud: TestEC2) -> None:
    op = wire.operation("ec2", "DescribeInstances")
    text = raw(cloud, "DescribeInstances", {}).text
    with pytest.raises(AssertionError, match="imageIdentity"):
        check(op, text.replace("<imageId>", "<imageIdentity>").replace("</imageId>", "</imageIdentity>"))
    with pytest.raises(AssertionError, match="launchTime"):
        check(op, text.replace("<launchTime>", "<launchTime>soon"))


def test_every_answer_that_the_provider_meets_is_one_that_aws_could_give(server: TestEC2, family: str, tmp_path: Path) -> None:
    """moto's too. Requests are held to the models by botocore, which sends none that they don't have."""
    met: dict[tuple[str, str], set[str]] = {}

    def answered(http_response: Any, parsed: Any, model: OperationModel, **_: Any) -> None:
        if http_response.status_code < 300:
            text = http_response.content.decode()
            met.setdefault((model.service_model.service_name, str(model.name)), set()).update(check(model, text))

    parameter = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
    provider = aws.provider(server, family, tmp_path, image=parameter, placement_scores=True)
    provider._aws._session.events.register("after-call.*.*", answered)
    plan = LaunchPlan(family, provider.offers()[0].pool, Market.SPOT, "#!/bin/sh\n", {"spotsurfer:job": "j"})
    provider.rehearse(plan)
    machine = provider.launch(plan)
    assert provider.describe().instances
    provider.terminate(machine.id)
    provider.credentials("j", 1, [])
    assert provider.witness is not None
    server.client("sqs").send_message(QueueUrl=aws.ground(server.endpoint)["queue_url"], MessageBody="{}")
    provider.witness.settle(provider.witness.read())
    assert {op for op, seen in met.items() if len(seen) > 1} == MET, "a call that is not looked at, or an empty answer"


@pytest.mark.parametrize(
    ("service", "action", "text", "words"),
    [
        ("sts", "AssumeRole", "<AssumeRoleResponse><AssumeRoleResult><Role/></AssumeRoleResult></AssumeRoleResponse>", "Role"),
        ("sts", "AssumeRole", "<AssumeRoleResponse><Credentials/></AssumeRoleResponse>", "AssumeRole"),
        ("sqs", "ReceiveMessage", '{"Messages": [{"Text": ""}]}', "Text"),
        ("sqs", "ReceiveMessage", '{"Messages": [{"Body": 7}]}', "7"),
        ("sqs", "DeleteMessageBatch", '{"Successful": []}', "Failed"),
        ("service-quotas", "GetServiceQuota", '{"Quota": {"Value": "8"}}', "'8'"),
    ],
)
def test_the_check_sees_what_other_services_do_not_know(service: str, action: str, text: str, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check(wire.operation(service, action), text)


def test_error_codes_are_those_of_the_documentation_with_the_status_of_their_class() -> None:
    assert set(ERRORS) <= {*CLIENT, *SERVER, *REPORTED}
    for code, (status, _) in ERRORS.items():
        assert (status >= 500) == (code in SERVER), code


@pytest.mark.parametrize("more", ["&InstanceTyp=m6i.large", "&Filter.1.Colour=red", "&MaxResults.1=5"])
def test_a_parameter_that_the_model_does_not_have_is_refused(more: str, cloud: TestEC2) -> None:
    headers = {"Authorization": authorization("ec2"), "Content-Type": wire.QUERY_TYPE}
    good = b"Action=DescribeInstances&Version=2016-11-15&Filter.1.Name=instance-type&Filter.1.Value.1=m6i.large"
    assert httpx.post(cloud.endpoint, content=good, headers=headers, trust_env=False).status_code == 200
    answer = httpx.post(cloud.endpoint, content=good + more.encode(), headers=headers, trust_env=False)
    assert "UnknownParameter" in answer.text


def test_errors_are_read_as_what_they_are(cloud: TestEC2) -> None:
    answer = raw(cloud, "DescribeInstances", {"InstanceIds": ["i-00000000000000000"]})
    found = wire.read_answer("ec2", "DescribeInstances", as_answer(answer))
    assert answer.status_code == 400
    assert found["Error"]["Code"] == "InvalidInstanceID.NotFound"


def authorization(service: str) -> str:
    return f"AWS4-HMAC-SHA256 Credential=AKIATEST/20260101/us-east-1/{service}/aws4_request, SignedHeaders=host, Signature=0"


def raw(cloud: TestEC2, action: str, params: Mapping[str, Any]) -> httpx.Response:
    headers = {"Authorization": authorization("ec2"), "Content-Type": wire.QUERY_TYPE}
    return httpx.post(
        cloud.endpoint, content=wire.encode_form("ec2", action, params), headers=headers, trust_env=False, timeout=30
    )


def as_answer(answer: httpx.Response) -> wire.Answer:
    return wire.Answer(answer.status_code, list(answer.headers.items()), answer.content)
