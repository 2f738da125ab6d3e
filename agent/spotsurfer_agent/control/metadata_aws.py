"""The dialect of AWS: the instance metadata service, version 2."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable

from spotsurfer_wire import clock

from spotsurfer_agent.control.facts import INTERRUPTION, REBALANCE
from spotsurfer_agent.control.metadata_service import INSTANCE, Answer, NoticeError, ServiceNotice, ask

TOKEN_SECONDS = 21600  # the longest that the service gives
TOKEN_RENEW_SECONDS = 18000.0
OTHERS_SECONDS = 5.0  # as often as AWS advises to ask at all ("Spot Instance interruption notices", EC2 user guide)
ACTION = "/latest/meta-data/spot/instance-action"
TERMINATION = "/latest/meta-data/spot/termination-time"
RECOMMENDATION = "/latest/meta-data/events/recommendations/rebalance"


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
        if answer is not None and (left := _seconds_until(answer.text.strip(), answer)) is not None:
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
    return ServiceNotice(INTERRUPTION, at, _seconds_until(at, answer))


def _seconds_until(at: str, answer: Answer) -> float | None:
    try:
        return answer.seconds_until(datetime.datetime.fromisoformat(at))
    except ValueError:
        return None
