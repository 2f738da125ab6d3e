"""Notices that nothing moves any more while a job stands still for it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

STALL_SECONDS = 90.0  # longer than anybody is patient with the store
LOOK_SECONDS = 1.0


@contextlib.contextmanager
def watched(signs: Callable[[], object], give_up: Callable[[], None], after_seconds: float | None = None) -> Iterator[None]:
    """Calls `give_up` once, from another thread, when `signs` were the same for so long while the body runs."""
    limit = STALL_SECONDS if after_seconds is None else after_seconds
    over = threading.Event()

    def watch() -> None:
        seen, at = signs(), time.monotonic()
        while not over.wait(min(LOOK_SECONDS, limit / 4)):
            now = signs()
            if now != seen:
                seen, at = now, time.monotonic()
            elif time.monotonic() - at > limit:
                give_up()
                return

    thread = threading.Thread(target=watch, name="stall", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
