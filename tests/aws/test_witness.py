"""The queue of events: what each kind says, messages that can't be read, and that one is gone only when it was handled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from spotsurfer_providers.aws.clients import Clients
from spotsurfer_providers.aws.interruption_queue import Queue, read_event
from support import aws
from support.ec2.client import TestEC2

from spotsurfer.model.errors import ProviderError
from spotsurfer.ports.provider import NoticeKind, QueueMessage

pytestmark = pytest.mark.real

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
ID = "i-0123456789abcdef0"


def event(kind: str, detail: Any, source: str = "aws.ec2", at: str = "2026-01-01T12:00:00Z") -> str:
    return json.dumps({"version": "0", "id": "x", "source": source, "detail-type": kind, "time": at, "detail": detail})


WARNING = event("EC2 Spot Instance Interruption Warning", {"instance-id": ID, "instance-action": "terminate"})
HEALTH = {
    "service": "EC2",
    "eventTypeCode": "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED",
    "eventTypeCategory": "scheduledChange",
    "affectedEntities": [{"entityValue": ID}, {"entityValue": f"arn:aws:ec2:us-east-1:123456789012:instance/{ID}"}],
}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (WARNING, [(ID, NoticeKind.INTERRUPTION, "AWS will terminate it")]),
        (
            event("EC2 Instance Rebalance Recommendation", {"instance-id": ID}),
            [(ID, NoticeKind.REBALANCE, "AWS recommends to leave it")],
        ),
        (
            event("EC2 Instance State-change Notification", {"instance-id": ID, "state": "stopping"}),
            [(ID, NoticeKind.STATE, "stopping")],
        ),
        (
            event("AWS Health Event", HEALTH, "aws.health"),
            [(ID, NoticeKind.RETIREMENT, "AWS Health: AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED")] * 2,
        ),
        (event("AWS Health Event", {**HEALTH, "eventTypeCategory": "accountNotification"}, "aws.health"), []),
        (event("AWS Health Event", {**HEALTH, "service": "RDS"}, "aws.health"), []),
        (event("AWS Health Event", {**HEALTH, "affectedEntities": [{"entityValue": "vol-1"}]}, "aws.health"), []),
    ],
)
def test_what_an_event_says(text: str, said: list[tuple[str, NoticeKind, str]]) -> None:
    assert [(s.instance, s.sign, s.text) for s in read_event(text, AT)] == said


@pytest.mark.parametrize("seconds", [-5, 0, 30])
def test_its_age_is_counted_by_one_clock_and_never_negative(seconds: int) -> None:
    (said,) = read_event(WARNING, AT + timedelta(seconds=seconds))
    assert said.age_seconds == max(seconds, 0)


POISON = {
    "no json": "hello",
    "a number": "7",
    "nothing": "",
    "no time": json.dumps({"source": "aws.ec2", "detail-type": "x", "detail": {}}),
    "a time without zone": event("EC2 Instance Rebalance Recommendation", {"instance-id": ID}, at="2026-01-01T12:00:00"),
    "no time at all": event("EC2 Instance Rebalance Recommendation", {"instance-id": ID}, at="yesterday"),
    "another kind": event("EC2 Fleet Error", {}),
    "another source": event("EC2 Spot Instance Interruption Warning", {"instance-id": ID}, "my.app"),
    "no instance": event("EC2 Spot Instance Interruption Warning", {}),
    "an instance that is none": event("EC2 Spot Instance Interruption Warning", {"instance-id": ["i-1"]}),
    "no detail": event("EC2 Spot Instance Interruption Warning", None),
    "health without entities' values": event("AWS Health Event", {**HEALTH, "affectedEntities": [{}]}, "aws.health"),
}


@pytest.mark.parametrize("text", POISON.values(), ids=POISON)
def test_poison_is_one_error_of_ours(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_event(text, AT)


# ---- the queue itself


@pytest.fixture
def url(cloud: TestEC2) -> Iterator[str]:
    sqs = cloud.client("sqs")
    made = sqs.create_queue(QueueName="witness", Attributes={"VisibilityTimeout": "0"})["QueueUrl"]
    yield made
    sqs.delete_queue(QueueUrl=made)


@pytest.fixture
def queue(cloud: TestEC2, url: str, monkeypatch: pytest.MonkeyPatch) -> Queue:
    monkeypatch.setattr("spotsurfer_providers.aws.interruption_queue.HIDDEN_SECONDS", 1)
    return Queue(Clients(aws.settings(cloud)), url)


def send(cloud: TestEC2, url: str, *texts: str) -> None:
    for text in texts:
        cloud.client("sqs").send_message(QueueUrl=url, MessageBody=text)


def left(cloud: TestEC2, url: str) -> int:
    """Messages that are not deleted."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = cloud.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return sum(int(n) for n in found.values())


def again(cloud: TestEC2, queue: Queue) -> list[QueueMessage]:
    found: list[QueueMessage] = []

    def some() -> bool:
        found.extend(queue.read())
        return bool(found)

    cloud.wait_for(some, "the messages to come again")
    return found


def test_what_is_not_settled_comes_again(cloud: TestEC2, queue: Queue, url: str) -> None:
    send(cloud, url, WARNING)
    (first,) = queue.read()
    (second,) = again(cloud, queue)
    assert [s.instance for s in second.notices] == [s.instance for s in first.notices] == [ID]
    queue.settle([second])
    assert left(cloud, url) == 0


def test_many_are_read_in_one_look_and_settled(cloud: TestEC2, queue: Queue, url: str) -> None:
    send(cloud, url, *[WARNING] * 23)
    cloud.order("log")
    letters = queue.read()
    queue.settle(letters)
    assert (len(letters), left(cloud, url)) == (23, 0)
    assert len(cloud.log("sqs:ReceiveMessage")) == 3


def test_poison_is_read_and_stays(cloud: TestEC2, queue: Queue, url: str) -> None:
    send(cloud, url, "poison", WARNING)
    letters = queue.read()
    assert sorted(bool(x.unreadable) for x in letters) == [False, True]
    queue.settle([x for x in letters if not x.unreadable])
    assert left(cloud, url) == 1


def test_after_some_tries_poison_is_set_aside(cloud: TestEC2, queue: Queue, url: str) -> None:
    """As terraform/aws/queue.tf has it: a dead-letter queue, which a person looks at."""
    sqs = cloud.client("sqs")
    dead = sqs.create_queue(QueueName="unread")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 2})
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": policy})
    send(cloud, url, "poison")

    def aside() -> bool:
        queue.read()
        return left(cloud, dead) == 1

    cloud.wait_for(aside, "the poison to be set aside", 15)
    assert left(cloud, url) == 0
    sqs.delete_queue(QueueUrl=dead)


@pytest.mark.parametrize("action", ["ReceiveMessage", "DeleteMessageBatch"])
def test_a_queue_that_fails_is_an_error_of_ours(cloud: TestEC2, queue: Queue, url: str, action: str) -> None:
    send(cloud, url, WARNING)
    cloud.order("rule", service="sqs", action=action, code="InternalError", status=500, times=-1)
    with pytest.raises(ProviderError, match=action):
        queue.settle(queue.read())
    assert left(cloud, url) == 1
