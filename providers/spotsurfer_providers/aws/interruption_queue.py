"""Interruption notices from AWS: EventBridge writes events to an SQS queue (terraform/aws/queue.tf), which we read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from spotsurfer.model.errors import ProviderError
from spotsurfer.model.job import InstanceId
from spotsurfer.ports.provider import Notice, NoticeKind, QueueMessage
from spotsurfer_providers.aws.clients import Clients
from spotsurfer_providers.aws.error_codes import calling

# ---- Events: one parser for each (source, detail-type). Pure.
# Shapes: EC2 user guide, "Spot Instance interruption notices", "EC2 instance rebalance recommendations" and "state-change
# notification"; AWS Health user guide, "Reference: AWS Health events Amazon EventBridge schema".

Said = tuple[str, NoticeKind, str]  # instance, sign, description
Parser = Callable[[Mapping[str, Any]], list[Said]]


def read_event(body: str, sent_now: datetime) -> list[Notice]:
    """The notices of a message. `sent_now`: the time of day by AWS's clock. Raises ValueError for an unknown event."""
    try:
        event = json.loads(body)
        at = datetime.fromisoformat(event["time"])
        key = (event["source"], event["detail-type"])
        said = PARSERS[key](event["detail"]) if key in PARSERS else None
        age = max((sent_now - at).total_seconds(), 0.0)
    except (KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"it is no event of EventBridge ({type(e).__name__}: {e})") from e
    if said is None:
        raise ValueError(f"there is no reader for {key[1]!r} of {key[0]}")
    return [Notice(InstanceId(instance), sign, age, text) for instance, sign, text in said]


def _health(detail: Mapping[str, Any]) -> list[Said]:
    """Scheduled changes of instances: retirement, reboot, maintenance. Open issues and account notes announce no end."""
    if detail["service"] != "EC2" or detail["eventTypeCategory"] != "scheduledChange":
        return []
    what = f"AWS Health: {detail['eventTypeCode']}"
    entities = [str(e["entityValue"]) for e in detail.get("affectedEntities") or []]
    return [(e.rpartition("/")[2], NoticeKind.RETIREMENT, what) for e in entities if e.rpartition("/")[2].startswith("i-")]


def _id(value: object) -> str:
    if not isinstance(value, str) or not value.startswith("i-"):
        raise ValueError(f"{value!r} is no instance")
    return value


PARSERS: Mapping[tuple[str, str], Parser] = {
    ("aws.ec2", "EC2 Spot Instance Interruption Warning"): lambda detail: [
        (_id(detail["instance-id"]), NoticeKind.INTERRUPTION, f"AWS will {detail.get('instance-action', 'take')} it")
    ],
    ("aws.ec2", "EC2 Instance Rebalance Recommendation"): lambda detail: [
        (_id(detail["instance-id"]), NoticeKind.REBALANCE, "AWS recommends to leave it")
    ],
    ("aws.ec2", "EC2 Instance State-change Notification"): lambda detail: [
        (_id(detail["instance-id"]), NoticeKind.STATE, str(detail["state"]))
    ],
    ("aws.health", "AWS Health Event"): _health,
}


# ---- Queue
# A read does not wait, because the tick that reads has more to do; the next one gets what a short poll misses. An unreadable
# message stays: SQS delivers it again, and after some times puts it into the dead-letter queue, for a person.

BATCH = 10  # SQS's limit
ROUNDS = 10  # of one read, at most
HIDDEN_SECONDS = 60  # a read message stays hidden for this long: time to handle it


class Queue:
    """One queue."""

    def __init__(self, clients: Clients, url: str) -> None:
        self._aws = clients
        self._url = url

    def read(self) -> Sequence[QueueMessage]:
        """Present messages, at most a hundred."""
        letters: list[QueueMessage] = []
        for _ in range(ROUNDS):
            with calling("ReceiveMessage"):
                answer = self._aws.sqs.receive_message(
                    QueueUrl=self._url, MaxNumberOfMessages=BATCH, VisibilityTimeout=HIDDEN_SECONDS, WaitTimeSeconds=0
                )
                messages = answer.get("Messages", [])
                now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])  # by AWS's clock
            letters += [_letter(m, now) for m in messages]
            if len(messages) < BATCH:
                break
        return letters

    def settle(self, letters: Sequence[QueueMessage]) -> None:
        """Delete them. An undeleted one comes again, and is known then."""
        for begin in range(0, len(letters), BATCH):
            some = letters[begin : begin + BATCH]
            entries = [{"Id": str(i), "ReceiptHandle": letter.receipt} for i, letter in enumerate(some)]
            with calling("DeleteMessageBatch"):
                answer = self._aws.sqs.delete_message_batch(QueueUrl=self._url, Entries=entries)
                failed = answer.get("Failed", [])
            if failed:
                raise ProviderError(f"DeleteMessageBatch: {len(failed)} messages stay for now: {failed[0].get('Code')}")


def _letter(message: Mapping[str, Any], now: datetime) -> QueueMessage:
    receipt, body = str(message.get("ReceiptHandle", "")), str(message.get("Body", ""))
    try:
        return QueueMessage(receipt, read_event(body, now))
    except ValueError as e:
        return QueueMessage(receipt, (), f"message {message.get('MessageId')} can't be read: {e}")
