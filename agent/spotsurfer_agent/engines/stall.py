"""Notices that nothing moves any more while a job stands still for it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from spotsurfer_agent import shimwire
from spotsurfer_agent.besides import beside

STALL_SECONDS = 90.0  # longer than anybody is patient with the store
LOOK_SECONDS = 1.0


@contextlib.contextmanager
def watched(signs: Callable[[], object], give_up: Callable[[], None], after_seconds: float) -> Iterator[Callable[[], bool]]:
    """Calls `give_up` once, from another thread, when `signs` were the same for so long while the body runs.

    Whether that happened is what the body is given to ask.
    """
    given_up = threading.Event()

    def watch(over: threading.Event) -> None:
        seen, at = signs(), time.monotonic()
        while not over.wait(min(LOOK_SECONDS, after_seconds / 4)):
            now = signs()
            if now != seen:
                seen, at = now, time.monotonic()
            elif time.monotonic() - at > after_seconds:
                given_up.set()
                give_up()
                return

    with beside(watch, "stall"):
        yield given_up.is_set


def ending_criu(folder: Path, verb: str, **arguments: Any) -> Callable[[], None]:
    """How a run of CRIU that hangs is given up: the shim of the job's folder ends it when asked by this verb."""

    def give_up() -> None:
        with contextlib.suppress(shimwire.ShimRefused, shimwire.ShimGone):  # it came to its end just now, or an older shim
            shimwire.ask(folder, verb, **arguments)

    return give_up
