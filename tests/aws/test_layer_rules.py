"""What EC2 does beyond storing things, and the test EC2 with it: tokens, capacity, prices, notices, templates, refusals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError
from support.ec2.client import REGION, TestEC2, serve

from spotsurfer.ports.clock import SystemClock

IMAGE = "ami-03cf127a"
ORDER: dict[str, Any] = {"ImageId": IMAGE, "InstanceType": "m6i.large", "MinCount": 1, "MaxCount": 1}
SPOT = {"InstanceMarketOptions": {"MarketType": "spot"}}
ACCOUNT = "123456789012"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestEC2]:
    with serve(tmp_path_factory.mktemp("ec2")) as running:
        yield running


@pytest.fixture
def cloud(server: TestEC2) -> Iterator[TestEC2]:
    yield server
    server.order("rules", clear=True)
    for pool, market in (("*", "spot"), ("*", "on-demand"), ("us-east-1a/*", "spot")):
        server.order("capacity", pool=pool, market=market, count=None)
    server.order("set", pending_seconds=0, shutdown_seconds=0, unlisted_seconds=0)


def now() -> datetime:
    return SystemClock().now().astimezone(UTC)


def refused(code: str) -> Any:
    return pytest.raises(ClientError, match=f"\\({code}\\)")


def run(cloud: TestEC2, **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = cloud.client("ec2").run_instances(**{**ORDER, **more})
    return answer


def one(cloud: TestEC2, **more: Any) -> str:
    return str(run(cloud, **more)["Instances"][0]["InstanceId"])


def shown(cloud: TestEC2, instance: str) -> dict[str, Any]:
    found: dict[str, Any] = cloud.client("ec2").describe_instances(InstanceIds=[instance])["Reservations"][0]["Instances"][0]
    return found


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


# ---------------------------------------------------------------- prices


def test_prices_step_and_the_one_that_held_at_the_start_is_shown(cloud: TestEC2) -> None:
    ec2, begin = cloud.client("ec2"), now()
    cloud.order("price", pool="us-east-1b/c6i.large", usd="0.5")
    cloud.order("price", pool="us-east-1b/c6i.large", usd="0.7", in_seconds=1)

    def prices(start: datetime) -> list[str]:
        asked = {"InstanceTypes": ["c6i.large"], "AvailabilityZone": "us-east-1b", "ProductDescriptions": ["Linux/UNIX"]}
        rows = ec2.describe_spot_price_history(StartTime=start, **asked)["SpotPriceHistory"]
        return [r["SpotPrice"] for r in rows]

    assert prices(begin - timedelta(seconds=60)) == ["0.500000", prices(begin - timedelta(days=1))[-1]]
    assert prices(now()) == ["0.500000"]
    cloud.wait_for(lambda: prices(now()) == ["0.700000"], "the step", 3)


def test_prices_on_demand_are_a_text_of_json(cloud: TestEC2) -> None:
    cloud.order("on_demand", type="m6i.large", usd="0.123")
    wanted = [{"Type": "TERM_MATCH", "Field": "instanceType", "Value": "m6i.large"}]
    (text,) = cloud.client("pricing").get_products(ServiceCode="AmazonEC2", Filters=wanted)["PriceList"]
    (term,) = json.loads(text)["terms"]["OnDemand"].values()
    (rate,) = term["priceDimensions"].values()
    assert float(rate["pricePerUnit"]["USD"]) == 0.123


# ---------------------------------------------------------------- notices and ends


def test_an_interruption_is_told_through_the_queue_and_ends_the_machine(cloud: TestEC2) -> None:
    url = queue(cloud, "interruption")
    taken = one(cloud, **SPOT)
    cloud.order("rebalance", instance=taken)
    cloud.order("interrupt", instance=taken, notice_seconds=0.5)
    assert shown(cloud, taken)["State"]["Name"] == "running"
    cloud.wait_for(lambda: shown(cloud, taken)["State"]["Name"] == "terminated", "its end", 5)
    assert shown(cloud, taken)["StateReason"]["Code"] == "Server.SpotInstanceTermination"
    (request,) = cloud.client("ec2").describe_spot_instance_requests(Filters=[{"Name": "instance-id", "Values": [taken]}])[
        "SpotInstanceRequests"
    ]
    assert (request["State"], request["Status"]["Code"]) == ("closed", "instance-terminated-no-capacity")
    told = [m for m in messages(cloud, url) if m["detail"]["instance-id"] == taken]
    kinds = [(m["detail-type"], m["detail"].get("state")) for m in told]
    assert kinds == [
        ("EC2 Instance State-change Notification", "pending"),
        ("EC2 Instance State-change Notification", "running"),
        ("EC2 Instance Rebalance Recommendation", None),
        ("EC2 Spot Instance Interruption Warning", None),
        ("EC2 Instance State-change Notification", "shutting-down"),
        ("EC2 Instance State-change Notification", "terminated"),
    ]
    assert all(m["source"] == "aws.ec2" and m["resources"] for m in told)


def test_volumes_and_interfaces_go_with_their_machine(cloud: TestEC2) -> None:
    ec2 = cloud.client("ec2")
    gone = one(cloud)
    (interface,) = [n["NetworkInterfaceId"] for n in shown(cloud, gone)["NetworkInterfaces"]]
    (volume,) = [m["Ebs"]["VolumeId"] for m in shown(cloud, gone)["BlockDeviceMappings"]]
    cloud.client("ec2").terminate_instances(InstanceIds=[gone])
    cloud.wait_for(lambda: shown(cloud, gone)["State"]["Name"] == "terminated", "its end")
    assert interface not in [n["NetworkInterfaceId"] for n in ec2.describe_network_interfaces()["NetworkInterfaces"]]
    assert volume not in [v["VolumeId"] for v in cloud.client("ec2").describe_volumes()["Volumes"]]
    assert shown(cloud, gone)["StateReason"]["Code"] == "Client.UserInitiatedShutdown"


def queue(cloud: TestEC2, name: str) -> str:
    url = str(cloud.client("sqs").create_queue(QueueName=name)["QueueUrl"])
    events = cloud.client("events")
    events.put_rule(Name=name, EventPattern=json.dumps({"source": ["aws.ec2"]}))
    events.put_targets(Rule=name, Targets=[{"Id": "1", "Arn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"}])
    return url


def messages(cloud: TestEC2, url: str) -> list[dict[str, Any]]:
    sqs, found = cloud.client("sqs"), []
    while got := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        found += [json.loads(m["Body"]) for m in got]
    return sorted(found, key=lambda m: m["time"])


# ---------------------------------------------------------------- trouble, and the log


def session(cloud: TestEC2, role: str, policy: str = "") -> dict[str, Any]:
    more = {"Policy": policy} if policy else {}
    arn = f"arn:aws:iam::{ACCOUNT}:role/{role}"
    given = cloud.client("sts").assume_role(RoleArn=arn, RoleSessionName="a-session", **more)["Credentials"]
    return {
        "aws_access_key_id": given["AccessKeyId"],
        "aws_secret_access_key": given["SecretAccessKey"],
        "aws_session_token": given["SessionToken"],
    }


def test_rules_meet_calls_by_action_and_parameters_and_are_used_up(cloud: TestEC2) -> None:
    cloud.order("rule", action="RunInstances", match={"InstanceType": "c6i.*"}, code="Unavailable", status=503, times=2)
    one(cloud)
    for _ in range(2):
        with refused("Unavailable"):
            run(cloud, InstanceType="c6i.large")
    one(cloud, InstanceType="c6i.large")


def test_answers_can_be_spoilt(cloud: TestEC2) -> None:
    living = one(cloud)
    cloud.order("rule", action="DescribeInstances", replace=[["<launchTime>.*?</launchTime>", ""]])
    assert "LaunchTime" not in shown(cloud, living)
    assert "LaunchTime" in shown(cloud, living)


def test_the_log_leads_from_a_session_back_to_its_role_and_policy(cloud: TestEC2) -> None:
    role, policy = f"arn:aws:iam::{ACCOUNT}:role/job", '{"Version": "2012-10-17", "Statement": []}'
    keys = session(cloud, "job", policy)
    cloud.client("s3").create_bucket(Bucket="of-the-log")
    cloud.client("s3", **keys).put_object(Bucket="of-the-log", Key="jobs/a/x", Body=b"1")
    call = cloud.log("s3:PutObject")[-1]
    assert (call["principal"]["role"], call["principal"]["session_policy"]) == (role, policy)
    assert call["resources"] == [{"arn": "arn:aws:s3:::of-the-log/jobs/a/x"}]
    assert cloud.log("sts:AssumeRole")[-1]["resources"] == [{"arn": role}]


@pytest.mark.parametrize("wrong", ["aws_secret_access_key", "aws_session_token"])
def test_a_session_is_believed_only_with_its_signature_and_token(wrong: str, cloud: TestEC2) -> None:
    keys = {**session(cloud, "signing"), wrong: "wrong"}
    with refused("AuthFailure"):
        cloud.client("ec2", **keys).describe_instances()
    with pytest.raises(ClientError):
        cloud.client("s3", **keys).list_buckets()


def test_a_presigned_address_is_good_for_its_key_and_time(cloud: TestEC2) -> None:
    s3 = cloud.client("s3", **session(cloud, "presigning"))
    s3.create_bucket(Bucket="presigned")
    s3.put_object(Bucket="presigned", Key="a key/with ü+%", Body=b"1")
    address = s3.generate_presigned_url("get_object", Params={"Bucket": "presigned", "Key": "a key/with ü+%"}, ExpiresIn=60)
    assert httpx.get(address, trust_env=False).content == b"1"
    assert httpx.get(address.replace("presigned", "elsewhere", 1), trust_env=False).status_code == 403
    late = s3.generate_presigned_url("get_object", Params={"Bucket": "presigned", "Key": "a key/with ü+%"}, ExpiresIn=-1)
    assert httpx.get(late, trust_env=False).status_code == 403


def test_an_expired_session_is_refused(cloud: TestEC2) -> None:
    keys = session(cloud, "expiring")
    cloud.client("ec2", **keys).describe_instances()
    cloud.order("expire", role="expiring")
    with refused("RequestExpired"):
        cloud.client("ec2", **keys).describe_instances()
    with refused("ExpiredToken"):
        cloud.client("s3", **keys).list_buckets()


def test_requests_of_another_time_are_refused(cloud: TestEC2) -> None:
    keys = session(cloud, "of-another-time")
    cloud.order("set", skew_seconds=1000)
    with refused("RequestExpired"):
        cloud.client("ec2", **keys).describe_instances()
    cloud.order("set", skew_seconds=0)
    cloud.client("ec2", **keys).describe_instances()


def test_many_deletions_are_a_right_on_each_object(cloud: TestEC2) -> None:
    s3 = cloud.client("s3")
    s3.create_bucket(Bucket="deletions")
    for key in ("a/1", "a/ü"):
        s3.put_object(Bucket="deletions", Key=key, Body=b"1")
    s3.delete_objects(Bucket="deletions", Delete={"Objects": [{"Key": "a/1"}, {"Key": "a/ü"}]})
    assert s3.list_objects_v2(Bucket="deletions")["KeyCount"] == 0
    call = cloud.log("s3:DeleteObject")[-1]
    assert [r["arn"] for r in call["resources"]] == ["arn:aws:s3:::deletions/a/1", "arn:aws:s3:::deletions/a/ü"]


def test_a_launch_is_written_down_with_the_rights_it_needs(cloud: TestEC2) -> None:
    iam = cloud.client("iam")
    iam.create_role(RoleName="machine", AssumeRolePolicyDocument="{}")
    iam.create_instance_profile(InstanceProfileName="machine")
    iam.add_role_to_instance_profile(InstanceProfileName="machine", RoleName="machine")
    tags = [{"ResourceType": kind, "Tags": [{"Key": "a", "Value": kind}]} for kind in ("instance", "volume")]
    before = len(cloud.log())
    one(cloud, TagSpecifications=tags, IamInstanceProfile={"Name": "machine"})
    calls = [c for c in cloud.log()[before:] if c["operation"] == "RunInstances"]
    assert [c["action"] for c in calls] == ["ec2:RunInstances", "ec2:CreateTags", "ec2:CreateTags", "iam:PassRole"]
    made = {r["arn"].rpartition(":")[2]: r.get("request_tags") for r in calls[0]["resources"]}
    assert (made["instance/*"], made["volume/*"]) == ({"a": "instance"}, {"a": "volume"})
    assert calls[1]["conditions"]["ec2:CreateAction"] == "RunInstances"
    assert calls[3]["resources"] == [{"arn": f"arn:aws:iam::{ACCOUNT}:role/machine"}]
