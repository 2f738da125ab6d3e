"""Watches the metadata service. Its failures are logged once and otherwise without effect."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable

from spotsurfer_agent import clock
from spotsurfer_agent.facts import INTERRUPTION, Warning
from spotsurfer_agent.notices.aws import Aws
from spotsurfer_agent.notices.port import Dialect, NoticeError

log = logging.getLogger(__name__)

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
    """Keeps the newest notice. An interruption stays: no cloud takes one back, and a drain must not hang on one lost answer."""

    def __init__(self, dialect: Dialect, now: Callable[[], float] = clock.monotonic) -> None:
        self._dialect, self._now = dialect, now
        self._works = True
        self.warning: Warning | None = None
        self.instance = ""

    def look(self) -> None:
        """Ask once; for a thread of its own."""
        try:
            self._take()
            if not self.instance:
                self.instance = self._dialect.instance()
            self._works = True
        except NoticeError as e:
            if self._works:
                log.warning("%s", e)
            self._works = False

    def _take(self) -> None:
        began = self._now()
        said = self._dialect.notice()
        if self.warning is not None and self.warning.kind == INTERRUPTION and (said is None or said.kind != INTERRUPTION):
            return
        if said is None:
            self.warning = None
            return
        name = hashlib.sha256(f"{said.kind} {said.content}".encode()).hexdigest()[:16]
        if self.warning is None or self.warning.id != name:
            deadline = None if said.seconds_left is None else began + said.seconds_left
            self.warning = Warning(said.kind, name, deadline)
            log.info("the cloud says %s, %s s left", said.kind, said.seconds_left)
