"""Calls to AWS a tick do not grow with jobs: the fleet is listed, nobody is asked for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import aws
from support.builders import an_attempt
from support.desk import Desk, clock
from support.ec2.client import TestEC2

from spotsurfer.controller.machines.circuit_breaker import Guarded
from spotsurfer.model.job import AttemptState, InstanceId, JobId, launch_token
from spotsurfer.state import jobs as rows

pytestmark = pytest.mark.real

SIZES = (10, 100, 500)
TICKS = 5


def test_ten_and_five_hundred_machines_cost_the_same_calls(cloud: TestEC2, family: str, tmp_path: Path) -> None:
    cloud.order("quota", code="L-1216C47A", value=5000)
    at = clock()
    desk = Desk(Guarded(aws.provider(cloud, family, tmp_path, at), at), at, family)
    settings, ec2 = aws.settings(cloud), cloud.client("ec2")
    made = 0
    seen: dict[int, Counter[str]] = {}
    for size in SIZES:
        while made < size:
            add(desk, ec2, settings.subnets["us-east-1a"], settings.image, made)
            made += 1
        desk.tick(1)
        cloud.order("log")
        decision = desk.tick(TICKS)
        assert decision.actions == ()  # a fleet at rest
        assert all(
            desk.observer.instance_of(launch_token(family, JobId(f"job-{i}"), an_attempt().number), None) for i in range(size)
        )
        seen[size] = Counter(c["action"] for c in cloud.log())
    assert seen[10] == seen[100] == seen[500]
    assert seen[500] == {"ec2:DescribeInstances": TICKS, "sqs:ReceiveMessage": TICKS}


def add(desk: Desk, ec2: Any, subnet: str, image: str | None, number: int) -> None:
    """A job that runs on a machine."""
    job = JobId(f"job-{number}")
    token = launch_token(desk.family, job, an_attempt().number)
    tags = [{"Key": "spotsurfer:family", "Value": desk.family}, {"Key": "spotsurfer:token", "Value": token}]
    machine = ec2.run_instances(
        InstanceType="m6i.large", MinCount=1, MaxCount=1, SubnetId=subnet, ImageId=image, ClientToken=token,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )["Instances"][0]  # fmt: skip
    now = desk.clock.now()
    attempt = an_attempt(state=AttemptState.RUNNING, since=now, launched_at=now, planned_at=now)
    desk.submit(str(job))
    with desk.engine.begin() as c:
        rows.add_attempt(c, replace(attempt, job=job, token=token, instance=InstanceId(machine["InstanceId"])))
