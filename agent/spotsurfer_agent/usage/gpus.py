"""What the machine's GPUs do, by NVIDIA's management library; on a machine without one nothing is loaded and nothing runs.

A call of the library waits as long as the driver does: a thread of its own asks, once a second, and readers get its last word.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from spotsurfer_agent import clock
from spotsurfer_agent.usage.gather import GpuSample, mean_of_all

log = logging.getLogger(__name__)
EVERY_SECONDS = 1.0
FRESH_SECONDS = 3.0  # older words say nothing about now
WATTS = 1000.0  # the library counts in thousandths


class Gpus:
    """All GPUs of this machine as one. `newest` never waits."""

    def __init__(
        self,
        devices: Path = Path("/dev"),
        load: Callable[[], Any] = lambda: importlib.import_module("spotsurfer_agent.cuda.binding").management(),
        now: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._there = (devices / "nvidiactl").exists()
        self._load, self._now = load, now
        self._thread: threading.Thread | None = None
        self._last: tuple[float, GpuSample] | None = None

    def newest(self) -> Sequence[GpuSample]:
        """What was seen within the last seconds; nothing where there is no GPU, or it does not answer."""
        if self._there and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)
            self._thread.start()
        last = self._last
        return (last[1],) if last is not None and self._now() - last[0] <= FRESH_SECONDS else ()

    def _run(self) -> None:
        try:
            if (library := self._load()) is None:
                return
            cards = [library.nvmlDeviceGetHandleByIndex(i) for i in range(library.nvmlDeviceGetCount())]
            while cards:
                self._last = self._now(), look(library, cards)
                time.sleep(EVERY_SECONDS)
        except Exception as e:  # of any kind: a library that is too old, a GPU that fell off its bus
            log.warning("the use of GPUs can't be seen: %s", e)


def look(library: Any, cards: Sequence[Any]) -> GpuSample:
    """All cards now. Power that is not told counts as nothing. Raises what the library raises where it tells no memory.

    With MIG a card does not tell how much of the time it works: what is not known must not look like rest.
    """
    shares = [_asked(lambda c=c: library.nvmlDeviceGetUtilizationRates(c).gpu / 100.0) for c in cards]  # type: ignore[misc]
    watts = [_asked(lambda c=c: library.nvmlDeviceGetPowerUsage(c) / WATTS) for c in cards]  # type: ignore[misc]
    memory = sum(int(library.nvmlDeviceGetMemoryInfo(c).used) for c in cards)
    return GpuSample(mean_of_all(shares), memory, sum(w or 0.0 for w in watts))


def _asked(question: Callable[[], float]) -> float | None:
    try:
        return float(question())
    except Exception:  # not supported by this card
        return None
