"""Notices that nothing moves any more while a job stands still for it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from spotsurfer_agent.threads import beside

STALL_SECONDS = 90.0  # longer than anybody is patient with the store
LOOK_SECONDS = 1.0


@contextlib.contextmanager
def watched(signs: Callable[[], object], give_up: Callable[[], None], after_seconds: float) -> Iterator[None]:
    """Calls `give_up` once, from another thread, when `signs` were the same for so long while the body runs."""

    def watch(over: threading.Event) -> None:
        seen, at = signs(), time.monotonic()
        while not over.wait(min(LOOK_SECONDS, after_seconds / 4)):
            now = signs()
            if now != seen:
                seen, at = now, time.monotonic()
            elif time.monotonic() - at > after_seconds:
                give_up()
                return

    with beside(watch, "stall"):
        yield
