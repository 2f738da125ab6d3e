"""Logs of the long-running processes: structlog set-up, and the closed list of event names.

One line for each event, fields as data: searches in logs need names that do not change with the wording.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from enum import StrEnum
from typing import Any, TextIO, cast

import structlog


class Event(StrEnum):
    """Every event that may be logged. A new one is added here first."""

    RUNTIME_BUILDING = "runtime.building"
    RESTORE_FINISHED = "restore.finished"
    SERVE_STARTED = "serve.started"
    SERVE_LISTENING = "serve.listening"
    SERVE_OPEN_TO_NETWORK = "serve.open-to-network"
    SERVE_HANGUP = "serve.hangup"
    SERVE_STOPPING = "serve.stopping"
    SERVE_STOPPED = "serve.stopped"
    FILES_CLOSED = "files.closed"
    FILES_OPEN = "files.open"
    REQUEST_FAILED = "request.failed"
    REQUEST_DENIED = "request.denied"
    TICK_FAILED = "tick.failed"
    OBSERVE_TROUBLE = "observe.trouble"
    ACTION_DONE = "action.done"
    ACTION_STALE = "action.stale"
    ACTION_FAILED = "action.failed"
    ACTION_REFUSED = "action.refused"
    JOB_SET_ASIDE = "job.set-aside"
    REPORT_REFUSED = "report.refused"
    REPORT_PASSED_OVER = "report.passed-over"
    POLICY_FAILED = "policy.failed"
    HOOK_DONE = "hook.done"
    JOURNAL_OPEN = "journal.open"
    PRICES_ASSUMED = "prices.assumed"
    WITNESS_UNREADABLE = "witness.unreadable"
    KEEPER_COLLECTED = "keeper.collected"
    KEEPER_TROUBLE = "keeper.trouble"
    KEEPER_FAILED = "keeper.failed"
    ACCESS_HANDED = "access.handed"
    ACCESS_FAILED = "access.failed"
    NUDGE_FAILED = "nudge.failed"
    FRONT_OPENED = "front.opened"
    FRONT_TAKEN = "front.taken"
    FRONT_FULL = "front.full"
    FRONT_WOKE = "front.woke"
    FRONT_TROUBLE = "front.trouble"
    ERRAND_FAILED = "errand.failed"


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
