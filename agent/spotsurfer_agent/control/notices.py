"""Interruption notices: the watcher of the metadata service, in whichever dialect the cloud speaks."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable

from spotsurfer_wire import clock

from spotsurfer_agent.control.facts import INTERRUPTION, Notice
from spotsurfer_agent.control.metadata_aws import Aws
from spotsurfer_agent.control.metadata_azure import Azure
from spotsurfer_agent.control.metadata_google import Google
from spotsurfer_agent.control.metadata_service import Dialect, NoticeError, ServiceNotice

log = logging.getLogger(__name__)

DIALECTS: dict[str, Callable[[str], Dialect]] = {"aws": Aws, "azure": Azure, "gcp": Google}


class UnknownDialect(ValueError):
    """The configuration names an unknown dialect; the message lists the known ones."""


def make_dialect(name: str, base_url: str) -> Dialect:
    """The dialect by name. Raises UnknownDialect."""
    try:
        return DIALECTS[name](base_url)
    except KeyError:
        raise UnknownDialect(f"no metadata dialect {name!r}, only {', '.join(DIALECTS)}") from None


class Watcher:
    """Keeps the newest notice. An interruption stays: clouds hardly ever take one back, and a drain must not hang on one lost
    answer.

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
