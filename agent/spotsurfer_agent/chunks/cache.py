"""Bytes kept by name up to a bound; the least recently used go first, and callers who want the same thing share one fetch."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from spotsurfer_agent.buffers import Buffer

B = TypeVar("B", bound=Buffer)


class Cache(Generic[B]):
    """Safe to use from several threads."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit, self._used = limit_bytes, 0
        self._kept: OrderedDict[str, B] = OrderedDict()
        self._fetching: dict[str, Future[B]] = {}
        self._lock = threading.Lock()

    def get(self, name: str, fetch: Callable[[], B], keep: bool = True) -> B:
        """What is kept, else what `fetch` gives; a failure goes to all who waited for it and is not kept."""
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)
                return self._kept[name]
            mine = Future[B]()
            shared = self._fetching.setdefault(name, mine)
        if shared is not mine:
            return shared.result()
        try:
            data = fetch()
        except BaseException as e:
            with self._lock:
                del self._fetching[name]
            mine.set_exception(e)
            raise
        with self._lock:
            del self._fetching[name]
            if keep:
                self._keep(name, data)
        mine.set_result(data)
        return data

    def has(self, name: str) -> bool:
        """Whether `get` would not wait for the store."""
        return name in self._kept

    def _keep(self, name: str, data: B) -> None:
        self._kept[name] = data
        self._used += len(data)
        while self._used > self._limit and self._kept:
            self._used -= len(self._kept.popitem(last=False)[1])
