"""What happens in EC2 besides orders, and in the test EC2: prices, notices, ends, sessions, trouble, the log of calls."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from botocore.exceptions import ClientError
from support.ec2.client import REGION, TestEC2
from support.ec2.orders import ACCOUNT, SPOT, now, one, refused, run, session, shown

pytestmark = pytest.mark.real

# ---------------------------------------------------------------- prices


def test_prices_step_and_the_one_that_held_at_the_start_is_shown(layer: TestEC2) -> None:
    ec2, begin = layer.client("ec2"), now()
    layer.order("price", pool="us-east-1b/c6i.large", usd="0.5")
    layer.order("price", pool="us-east-1b/c6i.large", usd="0.7", in_seconds=1)

    def prices(start: datetime) -> list[str]:
        asked = {"InstanceTypes": ["c6i.large"], "AvailabilityZone": "us-east-1b", "ProductDescriptions": ["Linux/UNIX"]}
        rows = ec2.describe_spot_price_history(StartTime=start, **asked)["SpotPriceHistory"]
        return [r["SpotPrice"] for r in rows]

    assert prices(begin - timedelta(seconds=60)) == ["0.500000", prices(begin - timedelta(days=1))[-1]]
    assert prices(now()) == ["0.500000"]
    layer.wait_for(lambda: prices(now()) == ["0.700000"], "the step", 3)


def test_prices_on_demand_are_a_text_of_json(layer: TestEC2) -> None:
    layer.order("on_demand", type="m6i.large", usd="0.123")
    wanted = [{"Type": "TERM_MATCH", "Field": "instanceType", "Value": "m6i.large"}]
    (text,) = layer.client("pricing").get_products(ServiceCode="AmazonEC2", Filters=wanted)["PriceList"]
    (term,) = json.loads(text)["terms"]["OnDemand"].values()
    (rate,) = term["priceDimensions"].values()
    assert float(rate["pricePerUnit"]["USD"]) == 0.123


# ---------------------------------------------------------------- notices and ends


def test_an_interruption_is_told_through_the_queue_and_ends_the_machine(layer: TestEC2) -> None:
    url = queue(layer, "interruption")
    taken = one(layer, **SPOT)
    layer.order("rebalance", instance=taken)
    layer.order("interrupt", instance=taken, notice_seconds=0.5)
    assert shown(layer, taken)["State"]["Name"] == "running"
    layer.wait_for(lambda: shown(layer, taken)["State"]["Name"] == "terminated", "its end", 5)
    assert shown(layer, taken)["StateReason"]["Code"] == "Server.SpotInstanceTermination"
    told = [m for m in messages(layer, url) if m["detail"]["instance-id"] == taken]
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


def test_volumes_and_interfaces_go_with_their_machine(layer: TestEC2) -> None:
    ec2 = layer.client("ec2")
    gone = one(layer)
    (interface,) = [n["NetworkInterfaceId"] for n in shown(layer, gone)["NetworkInterfaces"]]
    (volume,) = [m["Ebs"]["VolumeId"] for m in shown(layer, gone)["BlockDeviceMappings"]]
    layer.client("ec2").terminate_instances(InstanceIds=[gone])
    layer.wait_for(lambda: shown(layer, gone)["State"]["Name"] == "terminated", "its end")
    assert interface not in [n["NetworkInterfaceId"] for n in ec2.describe_network_interfaces()["NetworkInterfaces"]]
    assert volume not in [v["VolumeId"] for v in layer.client("ec2").describe_volumes()["Volumes"]]
    assert shown(layer, gone)["StateReason"]["Code"] == "Client.UserInitiatedShutdown"


def queue(layer: TestEC2, name: str) -> str:
    url = str(layer.client("sqs").create_queue(QueueName=name)["QueueUrl"])
    events = layer.client("events")
    events.put_rule(Name=name, EventPattern=json.dumps({"source": ["aws.ec2"]}))
    events.put_targets(Rule=name, Targets=[{"Id": "1", "Arn": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"}])
    return url


def messages(layer: TestEC2, url: str) -> list[dict[str, Any]]:
    sqs, found = layer.client("sqs"), []
    while got := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        found += [json.loads(m["Body"]) for m in got]
    return sorted(found, key=lambda m: m["time"])


# ---------------------------------------------------------------- trouble, and the log


def test_rules_meet_calls_by_action_and_parameters_and_are_used_up(layer: TestEC2) -> None:
    layer.order("rule", action="RunInstances", match={"InstanceType": "c6i.*"}, code="Unavailable", status=503, times=2)
    one(layer)
    for _ in range(2):
        with refused("Unavailable"):
            run(layer, InstanceType="c6i.large")
    one(layer, InstanceType="c6i.large")


def test_answers_can_be_spoilt(layer: TestEC2) -> None:
    living = one(layer)
    layer.order("rule", action="DescribeInstances", replace=[["<launchTime>.*?</launchTime>", ""]])
    assert "LaunchTime" not in shown(layer, living)
    assert "LaunchTime" in shown(layer, living)


def test_the_log_leads_from_a_session_back_to_its_role_and_policy(layer: TestEC2) -> None:
    role = f"arn:aws:iam::{ACCOUNT}:role/job"
    allowed = {"Effect": "Allow", "Action": "s3:PutObject", "Resource": "arn:aws:s3:::of-the-log/jobs/a/*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    keys = session(layer, "job", policy)
    layer.client("s3").create_bucket(Bucket="of-the-log")
    layer.client("s3", **keys).put_object(Bucket="of-the-log", Key="jobs/a/x", Body=b"1")
    call = layer.log("s3:PutObject")[-1]
    assert (call["principal"]["role"], call["principal"]["session_policy"]) == (role, policy)
    assert call["resources"] == [{"arn": "arn:aws:s3:::of-the-log/jobs/a/x"}]
    assert layer.log("sts:AssumeRole")[-1]["resources"] == [{"arn": role}]


@pytest.mark.parametrize("wrong", ["aws_secret_access_key", "aws_session_token"])
def test_a_session_is_believed_only_with_its_signature_and_token(wrong: str, layer: TestEC2) -> None:
    keys = {**session(layer, "signing"), wrong: "wrong"}
    with refused("AuthFailure"):
        layer.client("ec2", **keys).describe_instances()
    with pytest.raises(ClientError):
        layer.client("s3", **keys).list_buckets()


def test_a_presigned_address_is_good_for_its_key_and_time(layer: TestEC2) -> None:
    s3 = layer.client("s3", **session(layer, "presigning"))
    s3.create_bucket(Bucket="presigned")
    s3.put_object(Bucket="presigned", Key="a key/with ü+%", Body=b"1")
    address = s3.generate_presigned_url("get_object", Params={"Bucket": "presigned", "Key": "a key/with ü+%"}, ExpiresIn=60)
    assert httpx.get(address, trust_env=False).content == b"1"
    assert httpx.get(address.replace("presigned", "elsewhere", 1), trust_env=False).status_code == 403
    late = s3.generate_presigned_url("get_object", Params={"Bucket": "presigned", "Key": "a key/with ü+%"}, ExpiresIn=-1)
    assert httpx.get(late, trust_env=False).status_code == 403


def test_an_expired_session_is_refused(layer: TestEC2) -> None:
    keys = session(layer, "expiring")
    layer.client("ec2", **keys).describe_instances()
    layer.order("expire", role="expiring")
    with refused("RequestExpired"):
        layer.client("ec2", **keys).describe_instances()
    with refused("ExpiredToken"):
        layer.client("s3", **keys).list_buckets()


def test_requests_of_another_time_are_refused(layer: TestEC2) -> None:
    keys = session(layer, "of-another-time")
    layer.order("set", skew_seconds=1000)
    with refused("RequestExpired"):
        layer.client("ec2", **keys).describe_instances()
    layer.order("set", skew_seconds=0)
    layer.client("ec2", **keys).describe_instances()


def test_many_deletions_are_a_right_on_each_object(layer: TestEC2) -> None:
    s3 = layer.client("s3")
    s3.create_bucket(Bucket="deletions")
    for key in ("a/1", "a/ü"):
        s3.put_object(Bucket="deletions", Key=key, Body=b"1")
    s3.delete_objects(Bucket="deletions", Delete={"Objects": [{"Key": "a/1"}, {"Key": "a/ü"}]})
    assert s3.list_objects_v2(Bucket="deletions")["KeyCount"] == 0
    call = layer.log("s3:DeleteObject")[-1]
    assert [r["arn"] for r in call["resources"]] == ["arn:aws:s3:::deletions/a/1", "arn:aws:s3:::deletions/a/ü"]


def test_a_launch_is_written_down_with_the_rights_it_needs(layer: TestEC2) -> None:
    iam = layer.client("iam")
    iam.create_role(RoleName="machine", AssumeRolePolicyDocument="{}")
    iam.create_instance_profile(InstanceProfileName="machine")
    iam.add_role_to_instance_profile(InstanceProfileName="machine", RoleName="machine")
    tags = [{"ResourceType": kind, "Tags": [{"Key": "a", "Value": kind}]} for kind in ("instance", "volume")]
    before = len(layer.log())
    one(layer, TagSpecifications=tags, IamInstanceProfile={"Name": "machine"})
    calls = [c for c in layer.log()[before:] if c["operation"] == "RunInstances"]
    assert [c["action"] for c in calls] == ["ec2:RunInstances", "ec2:CreateTags", "ec2:CreateTags", "iam:PassRole"]
    made = {r["arn"].rpartition(":")[2]: r.get("request_tags") for r in calls[0]["resources"]}
    assert (made["instance/*"], made["volume/*"]) == ({"a": "instance"}, {"a": "volume"})
    assert calls[1]["conditions"]["ec2:CreateAction"] == "RunInstances"
    assert calls[3]["resources"] == [{"arn": f"arn:aws:iam::{ACCOUNT}:role/machine"}]
