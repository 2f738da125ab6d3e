"""A few threads with a bound on what is in flight, so that memory stays flat however large the files are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
WORKERS = 12
IN_FLIGHT = 32


class Pool:
    """Runs pieces of work; `submit` waits while too many are under way. The first failure stops the rest."""

    def __init__(self, workers: int = WORKERS, in_flight: int = IN_FLIGHT) -> None:
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="chunks")
        self._room = threading.BoundedSemaphore(in_flight)
        self._failure: BaseException | None = None

    def submit(self, work: Callable[..., T], *args: Any) -> Future[T]:
        """Hand in a piece of work. Raises the first failure of an earlier one."""
        self._room.acquire()
        if self._failure is not None:
            self._room.release()
            raise self._failure
        future = self._threads.submit(work, *args)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: Future[Any]) -> None:
        if not future.cancelled() and self._failure is None:
            self._failure = future.exception()
        self._room.release()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._threads.shutdown(wait=True, cancel_futures=kind is not None)
        if kind is None and self._failure is not None:
            raise self._failure
