"""The witness of AWS: an SQS queue that EventBridge writes to (terraform/aws/queue.tf).

It is asked without waiting, for the tick that asks has more to do; what a short poll misses, the next one brings. A message
that can't be read is left: SQS gives it again, and after some times puts it into the dead-letter queue, for a person.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from spotsurfer.model.errors import ProviderError
from spotsurfer.ports.witness import Letter
from spotsurfer_providers.aws.clients import Clients
from spotsurfer_providers.aws.errors import calling
from spotsurfer_providers.aws.events import read_event

BATCH = 10  # of SQS
ROUNDS = 10  # of a look, at most
HIDDEN_SECONDS = 60  # so long a message that was read is hidden: time to handle it


class Queue:
    """One queue."""

    def __init__(self, clients: Clients, url: str) -> None:
        self._aws = clients
        self._url = url

    def read(self) -> Sequence[Letter]:
        """What there is now, at most a hundred messages."""
        letters: list[Letter] = []
        for _ in range(ROUNDS):
            with calling("ReceiveMessage"):
                answer = self._aws.sqs.receive_message(
                    QueueUrl=self._url, MaxNumberOfMessages=BATCH, VisibilityTimeout=HIDDEN_SECONDS, WaitTimeSeconds=0
                )
                messages = answer.get("Messages", [])
                now = _aws_time(answer["ResponseMetadata"]) if messages else None
            letters += [_letter(m, now) for m in messages if now is not None]
            if len(messages) < BATCH:
                break
        return letters

    def settle(self, letters: Sequence[Letter]) -> None:
        """Delete them. One that could not be deleted comes again and is known then."""
        for begin in range(0, len(letters), BATCH):
            some = letters[begin : begin + BATCH]
            entries = [{"Id": str(i), "ReceiptHandle": letter.receipt} for i, letter in enumerate(some)]
            with calling("DeleteMessageBatch"):
                answer = self._aws.sqs.delete_message_batch(QueueUrl=self._url, Entries=entries)
                failed = answer.get("Failed", [])
            if failed:
                raise ProviderError(f"DeleteMessageBatch: {len(failed)} messages stay for now: {failed[0].get('Code')}")


def _letter(message: Mapping[str, Any], now: datetime) -> Letter:
    receipt, body = str(message.get("ReceiptHandle", "")), str(message.get("Body", ""))
    try:
        return Letter(receipt, read_event(body, now))
    except ValueError as e:
        return Letter(receipt, (), f"message {message.get('MessageId')} can't be read: {e}")


def _aws_time(metadata: Mapping[str, Any]) -> datetime:
    """The time of day as AWS sees it: every answer has it."""
    return parsedate_to_datetime(metadata["HTTPHeaders"]["date"])
