"""What EC2 does with orders, and the test EC2 with it: tokens, capacity, quotas, templates, listings, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from support.ec2.client import TestEC2, serve
from support.ec2.orders import IMAGE, SPOT, one, refused, run, shown, usual


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestEC2]:
    with serve(tmp_path_factory.mktemp("ec2")) as running:
        yield running


@pytest.fixture
def cloud(server: TestEC2) -> Iterator[TestEC2]:
    yield server
    usual(server)


# ---------------------------------------------------------------- tokens


def test_a_token_means_one_machine(cloud: TestEC2) -> None:
    first = one(cloud, ClientToken="same", UserData="#!/bin/sh\n")
    assert one(cloud, ClientToken="same", UserData="#!/bin/sh\n") == first
    assert one(cloud, ClientToken="other", UserData="#!/bin/sh\n") != first


@pytest.mark.parametrize("change", [{"UserData": "#!/bin/sh\ntrue\n"}, {"InstanceType": "c6i.large"}, SPOT], ids=str)
def test_a_token_with_other_parameters_is_refused(change: dict[str, Any], cloud: TestEC2) -> None:
    token = f"mismatch-{sorted(change)}"
    one(cloud, ClientToken=token, UserData="#!/bin/sh\n")
    with refused("IdempotentParameterMismatch"):
        run(cloud, ClientToken=token, **{"UserData": "#!/bin/sh\n", **change})


def test_a_token_whose_machine_has_ended_says_so(cloud: TestEC2) -> None:
    gone = one(cloud, ClientToken="ended")
    cloud.client("ec2").terminate_instances(InstanceIds=[gone])
    cloud.wait_for(lambda: shown(cloud, gone)["State"]["Name"] == "terminated", "its end")
    with refused("IdempotentInstanceTerminated"):
        run(cloud, ClientToken="ended")


def test_a_token_whose_answer_was_lost_still_counts(cloud: TestEC2) -> None:
    cloud.order("rule", action="RunInstances", code="InternalError", status=500, after=True)
    with refused("InternalError"):
        run(cloud, ClientToken="lost")
    before = len(cloud.machines())
    one(cloud, ClientToken="lost")
    assert len(cloud.machines()) == before


def test_tokens_of_moto_s_own_acts_count_too(cloud: TestEC2) -> None:
    ec2, order = cloud.client("ec2"), {"AvailabilityZone": "us-east-1a", "Size": 1, "ClientToken": "volume"}
    first = ec2.create_volume(**order)["VolumeId"]
    assert ec2.create_volume(**order)["VolumeId"] == first
    with refused("IdempotentParameterMismatch"):
        ec2.create_volume(**{**order, "Size": 2})
    assert ec2.create_volume(**{**order, "ClientToken": "another"})["VolumeId"] != first


def test_a_refused_order_does_not_use_up_its_token(cloud: TestEC2) -> None:
    cloud.order("capacity", pool="*", market="on-demand", count=0)
    with refused("InsufficientInstanceCapacity"):
        run(cloud, ClientToken="again")
    cloud.order("capacity", pool="*", market="on-demand", count=None)
    one(cloud, ClientToken="again")


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"InstanceType": "zz.xlarge"}, "InvalidParameterValue"),
        ({"ImageId": "ami-0123456789abcdef0"}, "InvalidAMIID.NotFound"),
        ({"ImageId": "debian"}, "InvalidAMIID.Malformed"),
        ({"ImageId": "resolve:ssm:/nothing/there"}, "InvalidParameterValue"),
        ({"SubnetId": "subnet-00000000"}, "InvalidSubnetID.NotFound"),
        ({"Placement": {"AvailabilityZone": "us-east-1e"}}, "Unsupported"),
        ({"UserData": "x" * 16385}, "InvalidParameterValue"),
        ({"IamInstanceProfile": {"Name": "nobody"}}, "InvalidParameterValue"),
        ({"DryRun": True}, "DryRunOperation"),
        (
            {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.001"}}},
            "SpotMaxPriceTooLow",
        ),
    ],
    ids=str,
)
def test_what_ec2_refuses(change: dict[str, Any], code: str, cloud: TestEC2) -> None:
    before = len(cloud.machines())
    with refused(code):
        run(cloud, **change)
    assert len(cloud.machines()) == before


def test_terminate_takes_all_or_none(cloud: TestEC2) -> None:
    living = one(cloud)
    with refused("InvalidInstanceID.NotFound"):
        cloud.client("ec2").terminate_instances(InstanceIds=[living, "i-00000000000000000"])
    assert shown(cloud, living)["State"]["Name"] == "running"


def test_capacity_is_of_a_pool_and_a_market_and_comes_back(cloud: TestEC2) -> None:
    cloud.order("capacity", pool="us-east-1a/*", market="spot", count=0)
    here, there = ({"Placement": {"AvailabilityZone": f"us-east-1{z}"}} for z in "ab")
    with pytest.raises(ClientError) as caught:
        run(cloud, **SPOT, **here)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500  # a server error: clients would repeat it
    assert caught.value.response["Error"]["Code"] == "InsufficientInstanceCapacity"
    one(cloud, **SPOT, **there)
    one(cloud, **here)
    cloud.order("capacity", pool="us-east-1a/*", market="spot", count=None)
    one(cloud, **SPOT, **here)


def test_a_machine_that_ends_makes_room(cloud: TestEC2) -> None:
    living = sum(1 for m in cloud.machines("running") if m["market"] == "spot")
    cloud.order("capacity", pool="*", market="spot", count=living + 1)
    gone = one(cloud, **SPOT)
    with refused("InsufficientInstanceCapacity"):
        run(cloud, **SPOT)
    cloud.client("ec2").terminate_instances(InstanceIds=[gone])
    cloud.wait_for(lambda: shown(cloud, gone)["State"]["Name"] == "terminated", "its end")
    one(cloud, **SPOT)


@pytest.mark.parametrize(
    ("market", "quota", "code"),
    [(SPOT, "L-34B43A08", "MaxSpotInstanceCountExceeded"), ({}, "L-1216C47A", "VcpuLimitExceeded")],
    ids=["spot", "on-demand"],
)
def test_quotas_count_processors(market: dict[str, Any], quota: str, code: str, cloud: TestEC2) -> None:
    quotas = cloud.client("service-quotas")
    before = quotas.get_service_quota(ServiceCode="ec2", QuotaCode=quota)["Quota"]["Value"]
    cloud.order("quota", code=quota, value=1)
    with refused(code):
        run(cloud, **market)
    cloud.order("quota", code=quota, value=before)
    one(cloud, **market)


# ---------------------------------------------------------------- templates, tags, listings


def test_a_launch_template_gives_market_metadata_and_tags(cloud: TestEC2) -> None:
    ec2 = cloud.client("ec2")
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
    found = shown(cloud, made["Instances"][0]["InstanceId"])
    tags = {t["Key"]: t["Value"] for t in found["Tags"]}
    assert (found["InstanceLifecycle"], found["MetadataOptions"]["HttpTokens"]) == ("spot", "required")
    assert (tags["a"], tags["b"], tags["aws:ec2launchtemplate:version"]) == ("1", "2", "1")


def test_listing_by_tag_and_lifecycle_a_page_at_a_time(cloud: TestEC2) -> None:
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "family", "Value": "pages"}]}]
    spot = {one(cloud, TagSpecifications=tags, **SPOT) for _ in range(7)}
    one(cloud, TagSpecifications=tags)
    ec2 = cloud.client("ec2")
    filters = [{"Name": "tag:family", "Values": ["pages"]}, {"Name": "instance-lifecycle", "Values": ["spot"]}]
    pages = list(ec2.get_paginator("describe_instances").paginate(Filters=filters, PaginationConfig={"PageSize": 5}))
    assert [len(p["Reservations"]) for p in pages] == [5, 2]
    assert {i["InstanceId"] for p in pages for r in p["Reservations"] for i in r["Instances"]} == spot
    with refused("InvalidParameterValue"):
        ec2.describe_instances(Filters=[{"Name": "colour", "Values": ["red"]}])
    with refused("InvalidParameterCombination"):
        ec2.describe_instances(InstanceIds=list(spot), MaxResults=5)


def test_a_new_machine_may_be_unknown_for_a_while(cloud: TestEC2) -> None:
    cloud.order("set", unlisted_seconds=1.0)
    new = one(cloud)
    with refused("InvalidInstanceID.NotFound"):
        shown(cloud, new)
    cloud.wait_for(lambda: new in [m["id"] for m in cloud.machines()], "it is there")

    def listed() -> bool:
        pages = cloud.client("ec2").describe_instances()["Reservations"]
        return new in [i["InstanceId"] for r in pages for i in r["Instances"]]

    assert not listed()
    cloud.wait_for(listed, "the listing", 3)
