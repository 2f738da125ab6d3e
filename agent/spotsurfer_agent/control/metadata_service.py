"""A cloud's metadata service as the agent asks it. Dialects: `metadata_aws.py`, `metadata_google.py`,
`metadata_azure.py`.
"""

from __future__ import annotations

import datetime
import email.utils
import http.client
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from spotsurfer_wire import clock

TIMEOUT_SECONDS = 2.0
ANSWER_BYTES_MAX = 1 << 20  # Google tells all of a VM at once
INSTANCE = re.compile(r"[A-Za-z0-9._-]{1,64}")  # an instance's id


class NoticeError(Exception):
    """The metadata service did not answer, or not in a usable way. Never a reason to disturb the job."""


@dataclass(frozen=True, slots=True)
class ServiceNotice:
    """The cloud's notice. `seconds_left` counts from the request; None = the cloud gave no time."""

    kind: str  # facts.INTERRUPTION | facts.REBALANCE
    content: str  # its exact text: equal content is the same notice
    seconds_left: float | None


class Dialect(Protocol):
    """One cloud's metadata service. Both methods raise NoticeError."""

    def notice(self) -> ServiceNotice | None:
        """The notice in force, an interruption before anything else; None = there is none."""
        ...

    def instance(self) -> str:
        """The cloud's name for this machine."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, whatever its status."""

    status: int
    text: str
    date: str  # the service's own clock, empty if it sends none
    etag: str = ""  # names this content, where the service does

    def seconds_until(self, moment: datetime.datetime) -> float:
        """Seconds from the service's own now; our clock may be wrong, and is used only if the service sends no time."""
        try:
            now = email.utils.parsedate_to_datetime(self.date)
        except (ValueError, OverflowError):
            now = clock.utc()
        return (_utc(moment) - _utc(now)).total_seconds()


def _utc(moment: datetime.datetime) -> datetime.datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)


def ask(base_url: str, method: str, path: str, headers: Mapping[str, str], wait_seconds: float = 0.0) -> Answer:
    """One request on a connection of its own: no proxy, no redirect, short limits. Raises NoticeError.

    `wait_seconds`: for which the service was asked to wait for news.
    """
    url = urlsplit(base_url)
    connection = http.client.HTTPConnection(url.hostname or "", url.port or 80, timeout=wait_seconds + TIMEOUT_SECONDS)
    try:
        connection.request(method, url.path.rstrip("/") + path, headers=dict(headers))
        response = connection.getresponse()
        text = response.read(ANSWER_BYTES_MAX).decode(errors="replace")
        return Answer(response.status, text, response.getheader("Date") or "", response.getheader("ETag") or "")
    except (OSError, http.client.HTTPException, ValueError) as e:
        raise NoticeError(f"the metadata service at {base_url} does not answer: {e}") from e
    finally:
        connection.close()
