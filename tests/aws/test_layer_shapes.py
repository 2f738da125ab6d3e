"""What the test EC2 answers, held to botocore's service models: nothing unknown to EC2, nothing missing that it demands."""

from __future__ import annotations

import datetime
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
from botocore.model import OperationModel, StructureShape
from support.ec2 import wire
from support.ec2.client import TestEC2, serve
from support.ec2.errors import ERRORS
from support.ec2.handlers import HANDLERS

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
    "InvalidSpotInstanceRequestID.NotFound",
    "InvalidSubnetID.NotFound",
    "InvalidUserData.Malformed",
    "MaxSpotInstanceCountExceeded",
    "MissingParameter",
    "RequestExpired",
    "SpotMaxPriceTooLow",
    "UnknownParameter",
    "Unsupported",
    "VcpuLimitExceeded",
]
SERVER = ["InsufficientInstanceCapacity", "InternalError", "RequestLimitExceeded", "ServiceUnavailable", "Unavailable"]


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestEC2]:
    with serve(tmp_path_factory.mktemp("ec2")) as running:
        ec2 = running.client("ec2")
        tags = [{"ResourceType": kind, "Tags": [{"Key": "a", "Value": "b"}]} for kind in ("instance", "spot-instances-request")]
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
    "DescribeInstanceStatus": {"IncludeAllInstances": True},
}


@pytest.mark.parametrize("action", sorted(a for s, a in HANDLERS if s == "ec2"))
def test_every_answer_is_one_that_ec2_could_give(action: str, cloud: TestEC2) -> None:
    asked = dict(ASKED.get(action, {}))
    if action == "TerminateInstances":
        asked = {"InstanceIds": [cloud.machines("running")[0]["id"]]}
    if action == "CancelSpotInstanceRequests":
        found = cloud.client("ec2").describe_spot_instance_requests()["SpotInstanceRequests"]
        asked = {"SpotInstanceRequestIds": [found[0]["SpotInstanceRequestId"]]}
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


def test_the_two_other_services(cloud: TestEC2) -> None:
    """botocore drops what it does not know, so what it gives back is compared with what was sent."""
    asked = (
        ("pricing", "GetProducts", {"ServiceCode": "AmazonEC2", "MaxResults": 3}),
        ("service-quotas", "ListServiceQuotas", {"ServiceCode": "ec2"}),
    )
    for service, action, what in asked:
        op = wire.operation(service, action)
        scope = {"pricing": "pricing", "service-quotas": "servicequotas"}[service]
        target = f"{op.service_model.metadata['targetPrefix']}.{action}"
        headers = {"Authorization": authorization(scope), "X-Amz-Target": target}
        answer = httpx.post(cloud.endpoint, json=what, headers=headers, trust_env=False)
        parsed = wire.read_answer(service, action, as_answer(answer))
        assert answer.json() and parsed == answer.json()


def test_error_codes_are_those_of_the_documentation_with_the_status_of_their_class() -> None:
    assert set(ERRORS) <= {*CLIENT, *SERVER}
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


def check(op: OperationModel, text: str) -> set[str]:
    """Every element of an answer has a member of the model, and its text has that member's type; the paths that were seen."""
    root = ET.fromstring(text)
    assert _bare(root.tag) == f"{op.name}Response"
    seen: set[str] = set()
    assert isinstance(op.output_shape, StructureShape)
    _structure(op.output_shape, [e for e in root if _bare(e.tag) != "requestId"], str(op.name), seen)
    return seen


def _structure(shape: Any, elements: list[ET.Element], path: str, seen: set[str]) -> None:
    known = {str(s.serialization.get("name", n)): (n, s) for n, s in shape.members.items()}
    for element in elements:
        name = _bare(element.tag)
        assert name in known, f"{path} has {name}, which EC2 does not know"
        seen.add(f"{path}.{name}")
        _value(known[name][1], element, f"{path}.{name}", seen)
    missing = set(shape.required_members) - {known[_bare(e.tag)][0] for e in elements}
    assert not missing, f"{path} lacks {missing}"


def _value(shape: Any, element: ET.Element, path: str, seen: set[str]) -> None:
    text = element.text or ""
    if shape.type_name == "structure":
        _structure(shape, list(element), path, seen)
    elif shape.type_name == "list":
        for item in element:
            assert _bare(item.tag) == shape.member.serialization.get("name", "item"), path
            _value(shape.member, item, path, seen)
    elif shape.type_name in ("integer", "long"):
        assert text.lstrip("-").isdigit(), f"{path} is {text!r}"
    elif shape.type_name == "boolean":
        assert text in ("true", "false"), f"{path} is {text!r}"
    elif shape.type_name == "timestamp":
        try:
            datetime.datetime.fromisoformat(text)
        except ValueError:
            raise AssertionError(f"{path} is {text!r}") from None
    elif getattr(shape, "enum", None):
        assert text in shape.enum, f"{path} is {text!r}"


def _bare(tag: str) -> str:
    return tag.rpartition("}")[2]
