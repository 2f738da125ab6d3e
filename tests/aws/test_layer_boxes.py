"""Machines of the test EC2 as boxes: user-data, the role's credentials, notices, every kind of end, and what a kill leaves."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.boxes import Yard
from support.ec2 import boxes, strays
from support.ec2.client import TestEC2, serve

pytestmark = pytest.mark.real
IMAGE = "ami-03cf127a"
ROLE = "arn:aws:iam::123456789012:role/of-machines"
# Written as plainly as can be: what user-data may expect of a machine.
ASK = """#!/bin/bash
T=$(curl -sS -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' http://169.254.169.254/latest/api/token)
imds() { curl -sf -H "X-aws-ec2-metadata-token: $T" "http://169.254.169.254/latest/meta-data/$1"; }
"""
FETCH = r"""
get() {
  C=$(imds iam/security-credentials/$(imds iam/security-credentials/))
  field() { echo "$C" | sed -n "s/.*\"$1\": \"\(.*\)\".*/\1/p"; }
  curl -sS --aws-sigv4 aws:amz:us-east-1:s3 --user "$(field AccessKeyId):$(field SecretAccessKey)" \
    -H "x-amz-security-token: $(field Token)" \
    -H "x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" -w ' %{http_code}\n' "$1"
}
"""


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestEC2]:
    state = tmp_path_factory.mktemp("ec2")
    with serve(state, ("--boxes", "--role-seconds", "4")) as running:
        iam, s3 = running.client("iam"), running.client("s3")
        iam.create_role(RoleName="of-machines", AssumeRolePolicyDocument="{}")
        iam.create_instance_profile(InstanceProfileName="of-machines")
        iam.add_role_to_instance_profile(InstanceProfileName="of-machines", RoleName="of-machines")
        s3.create_bucket(Bucket="of-machines")
        s3.put_object(Bucket="of-machines", Key="runtime/agent", Body=b"the agent")
        yield running
    Yard(state, None).assert_clean()  # type: ignore[arg-type]


def launch(cloud: TestEC2, script: str, **more: Any) -> str:
    order = {"ImageId": IMAGE, "InstanceType": "m6i.large", "MinCount": 1, "MaxCount": 1, "UserData": ASK + script}
    profile = {"IamInstanceProfile": {"Name": "of-machines"}}
    return str(cloud.client("ec2").run_instances(**order, **profile, **more)["Instances"][0]["InstanceId"])


def machine(cloud: TestEC2, instance: str) -> dict[str, Any]:
    return next(m for m in cloud.machines() if m["id"] == instance)


def until(cloud: TestEC2, instance: str, state: str, seconds: float = 10) -> dict[str, Any]:
    cloud.wait_for(lambda: machine(cloud, instance)["state"] == state, f"{instance} {state}", seconds)
    return machine(cloud, instance)


def printed(cloud: TestEC2, instance: str, text: str, seconds: float = 10) -> str:
    state = Path(cloud.info["state"])
    cloud.wait_for(lambda: text in boxes.console(state, instance), f"{text!r} of {instance}", seconds)
    return boxes.console(state, instance)


SPOT = {"InstanceMarketOptions": {"MarketType": "spot"}}


def test_user_data_reads_its_roles_credentials_and_fetches_with_them(cloud: TestEC2) -> None:
    url = f"{cloud.info['machine_endpoint']}/of-machines/runtime/agent"
    asked = "imds instance-id; echo; imds placement/availability-zone; echo"
    made = launch(cloud, f"{FETCH}\n{asked}; get {url}; echo done; sleep 100")
    text = printed(cloud, made, "done")
    assert (made in text, "us-east-1a" in text, "the agent 200" in text) == (True, True, True)
    call = cloud.log("s3:GetObject")[-1]
    assert (call["principal"]["role"], call["principal"]["session"]) == (ROLE, made)
    until(cloud, made, "running")


def test_credentials_of_the_role_are_renewed_and_old_ones_expire(cloud: TestEC2) -> None:
    url = f"{cloud.info['machine_endpoint']}/of-machines/runtime/agent"
    script = f"{FETCH}\nA=$(imds iam/security-credentials/of-machines)\nsleep 5; get {url}; echo fresh\n"
    made = launch(cloud, script + f'imds() {{ echo "$A"; }}\nget {url}; echo stale; sleep 100')
    text = printed(cloud, made, "stale", 20)
    assert "the agent 200\nfresh" in text
    assert "ExpiredToken" in text.partition("fresh")[2]


def test_a_warning_is_seen_inside_and_then_it_is_gone(cloud: TestEC2) -> None:
    made = launch(cloud, "until imds spot/instance-action; do sleep 0.1; done; echo; echo seen; sleep 100", **SPOT)
    until(cloud, made, "running")
    cloud.order("interrupt", instance=made, notice_seconds=2)
    assert '"action": "terminate"' in printed(cloud, made, "seen", 2)
    assert until(cloud, made, "terminated")["reason"][0] == "Server.SpotInstanceTermination"


@pytest.mark.parametrize(
    ("more", "state"),
    [
        ({"InstanceInitiatedShutdownBehavior": "terminate"}, "terminated"),
        ({}, "stopped"),  # and paid for on: who forgets that order pays for it
        (SPOT, "terminated"),
    ],
    ids=["ordered", "forgotten", "spot"],
)
def test_power_off_from_inside(more: dict[str, Any], state: str, cloud: TestEC2) -> None:
    made = launch(cloud, "kill -TERM 1", **more)
    assert until(cloud, made, state)["reason"][0] == "Client.InstanceInitiatedShutdown"


def test_terminated_at_once_after_its_launch(cloud: TestEC2) -> None:
    made = launch(cloud, "sleep 100")
    cloud.client("ec2").terminate_instances(InstanceIds=[made])
    until(cloud, made, "terminated")
    assert boxes.box_of(made) not in boxes.leftovers(Path(cloud.info["state"]))


def test_hardware_that_dies_is_still_called_running(cloud: TestEC2) -> None:
    made = launch(cloud, "sleep 100")
    until(cloud, made, "running")
    cloud.order("crash", instance=made)
    cloud.wait_for(lambda: boxes.box_of(made) not in boxes.leftovers(Path(cloud.info["state"])), "the box's end")
    (found,) = cloud.client("ec2").describe_instances(InstanceIds=[made])["Reservations"]
    assert found["Instances"][0]["State"]["Name"] == "running"


def test_what_a_killed_one_left_is_found_by_the_next(tmp_path: Path) -> None:
    state = tmp_path / "killed"
    with contextlib.suppress(BrokenPipeError), serve(state, ("--boxes",)) as first:
        made = launch_plain(first)
        until(first, made, "running")
        os.kill(first.info["pid"], signal.SIGKILL)
        assert boxes.leftovers(state) == [boxes.box_of(made)]
        with serve(tmp_path / "next"):
            assert boxes.leftovers(state) == []
    Yard(state, None).assert_clean()  # type: ignore[arg-type]
    assert str(state) not in [f.read_text() for f in strays.NOTES.glob("[0-9]*")]


def launch_plain(cloud: TestEC2) -> str:
    order = {"ImageId": IMAGE, "InstanceType": "m6i.large", "MinCount": 1, "MaxCount": 1, "UserData": "#!/bin/sh\nsleep 100\n"}
    return str(cloud.client("ec2").run_instances(**order)["Instances"][0]["InstanceId"])
