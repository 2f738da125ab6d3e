"""The way to a store, cut while something passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from threading import Thread

from support.engine_kit import until
from support.link import Link

CUT_SECONDS, SETTLE_SECONDS = 8.0, 0.5
CUT_AFTER_BYTES = 8 << 20  # what passes should be several times as much


class Cut:
    """A cut in the middle of what passes while the block lasts; at its end it is looked whether it really was in the middle."""

    def __init__(self, way: Link, how: str, nft: Sequence[str], meanwhile: Callable[[], None]) -> None:
        self._way, self._meanwhile = way, meanwhile
        self._cut, self._mend = {
            "silence": (way.cut, way.mend),
            "reset": (partial(way.reset, nft), partial(way.allow, nft)),
        }[how]
        self._thread = Thread(target=self._run)
        self._before, self._leaked_bytes, self._mended_at = way.passed_bytes, 0, 0
        self._was_well = False

    def __enter__(self) -> None:
        self._before = self._way.passed_bytes
        self._thread.start()

    def __exit__(self, kind: object, *_: object) -> None:
        after = self._way.passed_bytes - self._mended_at
        self._thread.join()
        if kind is None:
            assert self._was_well, "the job did not run on, or it was over before the way was there again"
            assert self._leaked_bytes < CUT_AFTER_BYTES // 10, self._leaked_bytes
            assert after > CUT_AFTER_BYTES, after

    def _run(self) -> None:
        until(lambda: self._way.passed_bytes - self._before > CUT_AFTER_BYTES, 60.0)
        self._cut()
        try:
            time.sleep(SETTLE_SECONDS)
            at = self._way.passed_bytes
            self._meanwhile()
            time.sleep(CUT_SECONDS)
            self._mended_at = self._way.passed_bytes
            self._leaked_bytes = self._mended_at - at
        finally:
            self._mend()
        self._was_well = True
