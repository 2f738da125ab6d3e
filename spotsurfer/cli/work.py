"""Long commands: begun at the controller, followed here with a line of progress, called off with Ctrl-C."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from spotsurfer.cli.client import LONG_POLL_SECONDS, Client
from spotsurfer.model.errors import SpotsurferError

QUIET_SECONDS = 2.0  # shorter ones say nothing but their result
STEP_SECONDS = 1.0


def follow(client: Client, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
    """The result of the command begun by this POST; raises its error. Ctrl-C ends it at the controller, too."""
    began, number = client.post(path, body), ""
    number, since, shown = str(began["id"]), time.monotonic(), False
    try:
        while not began["done"]:
            early = time.monotonic() - since < QUIET_SECONDS
            began = client.get(f"/v1/work/{number}", wait=STEP_SECONDS if early or sys.stderr.isatty() else LONG_POLL_SECONDS)
            if not began["done"] and time.monotonic() - since >= QUIET_SECONDS:
                shown = show(began) or shown
    except KeyboardInterrupt:
        with suppress(SpotsurferError):
            client.delete(f"/v1/work/{number}")
        raise
    finally:
        if shown:
            print(file=sys.stderr, flush=True)
    result: dict[str, Any] = began["result"] or {}
    return result


def show(state: Mapping[str, Any]) -> bool:
    """One line that is written over on a terminal, lines otherwise; whether it was the former."""
    of = f" {state['at']} of {state['of']}" if state["of"] else ""
    text = f"{state['what']}: {state['stage']}{of} …"
    terminal = sys.stderr.isatty()
    print(f"\r\x1b[K{text}" if terminal else text, end="" if terminal else "\n", file=sys.stderr, flush=True)
    return terminal
