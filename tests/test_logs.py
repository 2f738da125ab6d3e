"""Logs: the list of event names is closed, and each line can be read by a program."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from support.tree import ROOT

from spotsurfer.common import log_setup

LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    out = io.StringIO()
    log_setup.set_up("info", "json", out)
    yield out
    structlog.reset_defaults()


def _logged(path: Path) -> Iterator[str]:
    """Names of the events that a file logs."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        named: list[ast.expr] = []
        if isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
            named = node.args[:1]
        elif isinstance(node.func, ast.Name) and node.func.id == "Repeated":
            named = node.args[3:4]  # what it logs if its work fails
        yield from (a.value for a in named if isinstance(a, ast.Constant) and isinstance(a.value, str))


def test_the_list_of_events_is_closed_and_holds_nothing_else() -> None:
    rooms = (ROOT / "spotsurfer", ROOT / "providers/spotsurfer_providers/aws")
    found = {name for room in rooms for path in room.rglob("*.py") for name in _logged(path)}
    assert found == set(log_setup.EVENTS)


def test_a_line_is_json_with_time_and_level(lines: io.StringIO) -> None:
    structlog.get_logger(room="room").warning("hook.done", job="a\nb")
    structlog.get_logger(room="room").debug("hook.done")
    (line,) = [json.loads(x) for x in lines.getvalue().splitlines()]
    assert (line["event"], line["level"], line["room"], line["job"]) == ("hook.done", "warning", "room", "a\nb")
    assert line["timestamp"].endswith("Z")


def test_an_exception_is_logged_with_its_place_and_without_variables(lines: io.StringIO) -> None:
    secret = "the-" + "token"
    try:
        raise ValueError(len(secret))
    except ValueError:
        structlog.get_logger().exception("tick.failed")
    assert "ValueError: 9" in json.loads(lines.getvalue())["exception"]
    assert "the-token" not in lines.getvalue()


def test_who_logs_to_a_terminal_that_was_closed_goes_on() -> None:
    """An action that was done, and a thread that renews credentials, ended at the line that told of it."""
    (terminal, ours), lived = os.openpty(), False
    with contextlib.suppress(OSError), os.fdopen(ours, "w") as stream:  # closing it fails
        log_setup.set_up("info", "text", stream)
        structlog.get_logger(room="room").info("hook.done")
        os.close(terminal)
        with pytest.raises(OSError, match="Input/output"):
            print("gone", file=stream, flush=True)
        try:
            structlog.get_logger(room="room").info("hook.done")
            lived = True
        finally:
            structlog.reset_defaults()
    assert lived
