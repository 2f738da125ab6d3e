"""Logs of the long-running processes: structlog set-up, and the closed list of event names.

One line for each event, fields as data: searches in logs need names that do not change with the wording.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from typing import Any, TextIO, cast

import structlog

# Every event that may be logged. A new one is added here first; a test compares the list with the code.
EVENTS = (
    *("runtime.building", "restore.finished", "serve.started", "serve.listening", "serve.open-to-network"),
    *("serve.hangup", "serve.stopping", "serve.stopped", "files.closed", "files.open", "request.failed"),
    *("request.denied", "tick.failed", "observe.trouble", "action.done", "action.stale", "action.failed"),
    *("action.refused", "job.set-aside", "report.refused", "report.passed-over", "policy.failed", "hook.done", "row.spoilt"),
    *("journal.open", "prices.assumed", "witness.unreadable", "keeper.collected", "keeper.trouble", "keeper.failed"),
    *("homes.removed",),
    *("access.handed", "access.failed", "nudge.failed", "front.opened", "front.taken", "front.full", "front.woke"),
    *("config.refused", "front.trouble", "errand.failed", "token.use-not-noted", "audit.lost", "config.reloaded"),
    *("licences.uncounted", "licences.failed"),
    *("notify.failed", "webhook.failed", "webhook.given-up", "oidc.refused", "oidc.unreachable"),
)


class _Lasting(io.TextIOBase):
    """A stream that takes lines while it can. A terminal that was closed, or a full disk, ends none of its writers."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str, /) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()


def set_up(level: str = "info", form: str = "auto", stream: TextIO | None = None) -> None:
    """Send logs to `stream` (stderr): JSON lines, or text for people; "auto" is text on a terminal only."""
    out = cast("TextIO", _Lasting(stream or sys.stderr))
    text = form == "text" or (form == "auto" and out.isatty())
    plain = structlog.dev.plain_traceback  # the default draws every local variable, which takes seconds
    renderer: Any = structlog.processors.JSONRenderer()
    if text:
        renderer = structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=plain)
    processors: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if not text:
        processors.append(structlog.processors.format_exc_info)
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=max(number, logging.WARNING), stream=out, format="%(levelname)s %(name)s %(message)s")
