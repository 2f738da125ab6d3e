"""What EC2 does with orders, and the test EC2 with it: tokens, capacity, quotas, templates, listings, refusals."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError
from support.ec2.client import TestEC2
from support.ec2.orders import IMAGE, SPOT, one, refused, run, shown

pytestmark = pytest.mark.real

# ---------------------------------------------------------------- tokens


def test_a_token_means_one_machine(layer: TestEC2) -> None:
    first = one(layer, ClientToken="same", UserData="#!/bin/sh\n")
    assert one(layer, ClientToken="same", UserData="#!/bin/sh\n") == first
    assert one(layer, ClientToken="other", UserData="#!/bin/sh\n") != first


@pytest.mark.parametrize("change", [{"UserData": "#!/bin/sh\ntrue\n"}, {"InstanceType": "c6i.large"}, SPOT], ids=str)
def test_a_token_with_other_parameters_is_refused(change: dict[str, Any], layer: TestEC2) -> None:
    token = f"mismatch-{sorted(change)}"
    one(layer, ClientToken=token, UserData="#!/bin/sh\n")
    with refused("IdempotentParameterMismatch"):
        run(layer, ClientToken=token, **{"UserData": "#!/bin/sh\n", **change})


def test_a_token_whose_machine_has_ended_says_so(layer: TestEC2) -> None:
    gone = one(layer, ClientToken="ended")
    layer.client("ec2").terminate_instances(InstanceIds=[gone])
    layer.wait_for(lambda: shown(layer, gone)["State"]["Name"] == "terminated", "its end")
    with refused("IdempotentInstanceTerminated"):
        run(layer, ClientToken="ended")


def test_a_token_whose_answer_was_lost_still_counts(layer: TestEC2) -> None:
    layer.order("rule", action="RunInstances", code="InternalError", status=500, after=True)
    with refused("InternalError"):
        run(layer, ClientToken="lost")
    before = len(layer.machines())
    one(layer, ClientToken="lost")
    assert len(layer.machines()) == before


def test_a_refused_order_does_not_use_up_its_token(layer: TestEC2) -> None:
    layer.order("capacity", pool="*", market="on-demand", count=0)
    with refused("InsufficientInstanceCapacity"):
        run(layer, ClientToken="again")
    layer.order("capacity", pool="*", market="on-demand", count=None)
    one(layer, ClientToken="again")


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"InstanceType": "zz.xlarge"}, "InvalidParameterValue"),
        ({"ImageId": "ami-0123456789abcdef0"}, "InvalidAMIID.NotFound"),
        ({"ImageId": "debian"}, "InvalidAMIID.Malformed"),
        ({"SubnetId": "subnet-00000000"}, "InvalidSubnetID.NotFound"),
        ({"Placement": {"AvailabilityZone": "us-east-1e"}}, "Unsupported"),
        ({"UserData": "x" * 16385}, "InvalidUserData.Malformed"),
        ({"IamInstanceProfile": {"Name": "nobody"}}, "InvalidParameterValue"),
        ({"DryRun": True}, "DryRunOperation"),
    ],
    ids=str,
)
def test_what_ec2_refuses(change: dict[str, Any], code: str, layer: TestEC2) -> None:
    before = len(layer.machines())
    with refused(code):
        run(layer, **change)
    assert len(layer.machines()) == before


def test_requests_are_held_to_the_lengths_of_the_models(layer: TestEC2) -> None:
    long = [{"Type": "ANY_OF", "Field": "instanceType", "Value": "m" * 1025}]
    with pytest.raises(ClientError, match=r"Filters.Value has 1025, allowed are 1 to 1024"):
        layer.client("pricing").get_products(ServiceCode="AmazonEC2", Filters=long)
    with refused("InvalidParameterValue"):
        layer.client("ec2").describe_instance_types(MaxResults=101)


def test_terminate_takes_all_or_none(layer: TestEC2) -> None:
    living = one(layer)
    with refused("InvalidInstanceID.NotFound"):
        layer.client("ec2").terminate_instances(InstanceIds=[living, "i-00000000000000000"])
    assert shown(layer, living)["State"]["Name"] == "running"


def test_capacity_is_of_a_pool_and_a_market_and_comes_back(layer: TestEC2) -> None:
    layer.order("capacity", pool="us-east-1a/*", market="spot", count=0)
    here, there = ({"Placement": {"AvailabilityZone": f"us-east-1{z}"}} for z in "ab")
    with pytest.raises(ClientError) as caught:
        run(layer, **SPOT, **here)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500  # a server error: clients would repeat it
    assert caught.value.response["Error"]["Code"] == "InsufficientInstanceCapacity"
    one(layer, **SPOT, **there)
    one(layer, **here)
    layer.order("capacity", pool="us-east-1a/*", market="spot", count=None)
    one(layer, **SPOT, **here)


def test_a_machine_that_ends_makes_room(layer: TestEC2) -> None:
    living = sum(1 for m in layer.machines("running") if m["market"] == "spot")
    layer.order("capacity", pool="*", market="spot", count=living + 1)
    gone = one(layer, **SPOT)
    with refused("InsufficientInstanceCapacity"):
        run(layer, **SPOT)
    layer.client("ec2").terminate_instances(InstanceIds=[gone])
    layer.wait_for(lambda: shown(layer, gone)["State"]["Name"] == "terminated", "its end")
    one(layer, **SPOT)


# ---------------------------------------------------------------- templates, tags, listings


def test_a_launch_template_gives_market_metadata_and_tags(layer: TestEC2) -> None:
    ec2 = layer.client("ec2")
    data = {
        "ImageId": IMAGE,
        "InstanceType": "m6i.large",
        "InstanceMarketOptions": {"MarketType": "spot"},
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "1"}]}],
    }
    ec2.create_launch_template(LaunchTemplateName="t", LaunchTemplateData=data)
    own = [{"ResourceType": "instance", "Tags": [{"Key": "b", "Value": "2"}]}]
    made = ec2.run_instances(LaunchTemplate={"LaunchTemplateName": "t"}, TagSpecifications=own, MinCount=1, MaxCount=1)
    found = shown(layer, made["Instances"][0]["InstanceId"])
    tags = {t["Key"]: t["Value"] for t in found["Tags"]}
    assert (found["InstanceLifecycle"], found["MetadataOptions"]["HttpTokens"]) == ("spot", "required")
    assert (tags["a"], tags["b"], tags["aws:ec2launchtemplate:version"]) == ("1", "2", "1")


def test_listing_by_tag_and_lifecycle_a_page_at_a_time(layer: TestEC2) -> None:
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "family", "Value": "pages"}]}]
    spot = {one(layer, TagSpecifications=tags, **SPOT) for _ in range(7)}
    one(layer, TagSpecifications=tags)
    ec2 = layer.client("ec2")
    filters = [{"Name": "tag:family", "Values": ["pages"]}, {"Name": "instance-lifecycle", "Values": ["spot"]}]
    pages = list(ec2.get_paginator("describe_instances").paginate(Filters=filters, PaginationConfig={"PageSize": 5}))
    assert [len(p["Reservations"]) for p in pages] == [5, 2]
    assert {i["InstanceId"] for p in pages for r in p["Reservations"] for i in r["Instances"]} == spot
    with refused("InvalidParameterValue"):
        ec2.describe_instances(Filters=[{"Name": "colour", "Values": ["red"]}])
    with refused("InvalidParameterCombination"):
        ec2.describe_instances(InstanceIds=list(spot), MaxResults=5)


def test_a_new_machine_may_be_unknown_for_a_while(layer: TestEC2) -> None:
    layer.order("set", unlisted_seconds=1.0)
    new = one(layer)
    with refused("InvalidInstanceID.NotFound"):
        shown(layer, new)
    layer.wait_for(lambda: new in [m["id"] for m in layer.machines()], "it is there")

    def listed() -> bool:
        pages = layer.client("ec2").describe_instances()["Reservations"]
        return new in [i["InstanceId"] for r in pages for i in r["Instances"]]

    assert not listed()
    layer.wait_for(listed, "the listing", 3)
