"""Interruption notices: the watcher of the metadata service, and the dialect of AWS (IMDSv2)."""

from __future__ import annotations

import datetime
import email.utils
import hashlib
import http.client
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from spotsurfer_wire import clock

from spotsurfer_agent.control.facts import INTERRUPTION, REBALANCE, Notice

log = logging.getLogger(__name__)
TIMEOUT_SECONDS = 2.0
ANSWER_BYTES_MAX = 64 << 10
TOKEN_SECONDS = 21600  # the longest that the service gives
TOKEN_RENEW_SECONDS = 18000.0
OTHERS_SECONDS = 5.0  # as often as AWS advises to ask at all ("Spot Instance interruption notices", EC2 user guide)
INSTANCE = re.compile(r"[A-Za-z0-9._-]{1,64}")  # an instance's id
ACTION = "/latest/meta-data/spot/instance-action"
TERMINATION = "/latest/meta-data/spot/termination-time"
RECOMMENDATION = "/latest/meta-data/events/recommendations/rebalance"


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


def ask(base_url: str, method: str, path: str, headers: Mapping[str, str]) -> Answer:
    """One request on a connection of its own: no proxy, no redirect, short limits. Raises NoticeError."""
    url = urlsplit(base_url)
    connection = http.client.HTTPConnection(url.hostname or "", url.port or 80, timeout=TIMEOUT_SECONDS)
    try:
        connection.request(method, url.path.rstrip("/") + path, headers=dict(headers))
        response = connection.getresponse()
        text = response.read(ANSWER_BYTES_MAX).decode(errors="replace")
        return Answer(response.status, text, response.getheader("Date") or "")
    except (OSError, http.client.HTTPException, ValueError) as e:
        raise NoticeError(f"the metadata service at {base_url} does not answer: {e}") from e
    finally:
        connection.close()


class Aws:
    """Asks the instance metadata service at `base_url`."""

    def __init__(self, base_url: str, now: Callable[[], float] = clock.monotonic) -> None:
        self._base_url, self._now = base_url, now
        self._token, self._token_at = "", float("-inf")
        self._others: ServiceNotice | None = None
        self._others_at = float("-inf")

    def notice(self) -> ServiceNotice | None:
        """The notice in force; an interruption goes before a recommendation."""
        answer = self._get(ACTION)
        if answer is not None:
            return _action(answer)
        if self._now() - self._others_at >= OTHERS_SECONDS:
            self._others, self._others_at = self._other(), self._now()
        return self._others

    def _other(self) -> ServiceNotice | None:
        """The other notices: the older form of an interruption, which comes with the newer one, and a mere recommendation."""
        answer = self._get(TERMINATION)
        if answer is not None and (left := _seconds_until(answer.text.strip(), answer.date)) is not None:
            return ServiceNotice(INTERRUPTION, answer.text.strip(), left)
        answer = self._get(RECOMMENDATION)
        return ServiceNotice(REBALANCE, answer.text.strip(), None) if answer is not None else None

    def instance(self) -> str:
        """The instance's id."""
        answer = self._get("/latest/meta-data/instance-id")
        name = answer.text.strip() if answer is not None else ""
        if not INSTANCE.fullmatch(name):
            raise NoticeError("the metadata service does not know the instance's id")
        return name

    def _get(self, path: str) -> Answer | None:
        """The answer, None for "there is none". A token that the service forgot is replaced once."""
        answer = self._ask(path)
        if answer.status == 401:
            self._token = ""
            answer = self._ask(path)
        if answer.status not in (200, 404):
            raise NoticeError(f"the metadata service answers {answer.status} to {path}")
        return answer if answer.status == 200 else None

    def _ask(self, path: str) -> Answer:
        return ask(self._base_url, "GET", path, {"X-aws-ec2-metadata-token": self._fresh_token()})

    def _fresh_token(self) -> str:
        if not self._token or self._now() - self._token_at > TOKEN_RENEW_SECONDS:
            headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
            answer = ask(self._base_url, "PUT", "/latest/api/token", headers)
            if answer.status != 200:
                raise NoticeError(f"the metadata service gives no token: {answer.status}")
            self._token, self._token_at = answer.text.strip(), self._now()
        return self._token


def _action(answer: Answer) -> ServiceNotice | None:
    """`{"action": "terminate" | "stop" | "hibernate", "time": "…Z"}`; each takes the machine."""
    try:
        raw = json.loads(answer.text)
        at = str(raw["time"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ServiceNotice(
            INTERRUPTION, answer.text.strip(), None
        )  # it speaks of an interruption, in words that we don't know
    return ServiceNotice(INTERRUPTION, at, _seconds_until(at, answer.date))


def _seconds_until(at: str, date: str) -> float | None:
    """Seconds from the service's own now; our clock may be wrong, and is used only if the service sends no time."""
    try:
        end = datetime.datetime.fromisoformat(at)
    except ValueError:
        return None
    end = end if end.tzinfo is not None else end.replace(tzinfo=datetime.UTC)
    try:
        now = email.utils.parsedate_to_datetime(date)
    except ValueError:
        now = clock.utc()
    now = now if now.tzinfo is not None else now.replace(tzinfo=datetime.UTC)
    return (end - now).total_seconds()


DIALECTS: dict[str, Callable[[str], Dialect]] = {"aws": Aws}


class UnknownDialect(ValueError):
    """The configuration names an unknown dialect; the message lists the known ones."""


def make_dialect(name: str, base_url: str) -> Dialect:
    """The dialect by name. Raises UnknownDialect."""
    try:
        return DIALECTS[name](base_url)
    except KeyError:
        raise UnknownDialect(f"no metadata dialect {name!r}, only {', '.join(DIALECTS)}") from None


class Watcher:
    """Keeps the newest notice. An interruption stays: no cloud takes one back, and a drain must not hang on one lost answer.

    A failure of the metadata service is logged once and otherwise has no effect.
    """

    def __init__(self, dialect: Dialect, now: Callable[[], float] = clock.monotonic) -> None:
        self._dialect, self._now = dialect, now
        self._works = True
        self.notice: Notice | None = None
        self.instance = ""

    def look(self) -> None:
        """Ask once; for a thread of its own."""
        try:
            began = self._now()
            self._take(self._dialect.notice(), began)
            if not self.instance:
                self.instance = self._dialect.instance()
            self._works = True
        except NoticeError as e:
            if self._works:
                log.warning("%s", e)
            self._works = False

    def _take(self, said: ServiceNotice | None, began: float) -> None:
        if self.notice is not None and self.notice.kind == INTERRUPTION and (said is None or said.kind != INTERRUPTION):
            return
        if said is None:
            self.notice = None
            return
        name = hashlib.sha256(f"{said.kind} {said.content}".encode()).hexdigest()[:16]
        if self.notice is None or self.notice.id != name:
            deadline = None if said.seconds_left is None else began + said.seconds_left
            self.notice = Notice(said.kind, name, deadline)
            log.info("the cloud says %s, %s s left", said.kind, said.seconds_left)
