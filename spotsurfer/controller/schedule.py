"""The periodic tick, and work that is repeated in the background beside it.

The schedule holds a few periodic ticks in memory. It knows no due times of jobs: `decide` looks at everything each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import structlog
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler

from spotsurfer.model.actions import Decision
from spotsurfer.model.errors import Superseded

log = structlog.get_logger()
AGAIN_SECONDS = 0.5  # after a tick that acted; an action that keeps failing is not repeated more often
STOP_SECONDS = 10.0  # at most is waited for background work under way
NEXT_SECONDS = 0.02  # after a tick that moved a state on: that can't repeat endlessly, and a wait has no use


class Schedule:
    """Calls `tick` every so many seconds, and at once when poked; never twice at the same time."""

    def __init__(self, tick: Callable[[], Decision], pace: tuple[float, float], fatal: Callable[[BaseException], None]) -> None:
        """`pace`: seconds between ticks, and while a job stands still on its way from one machine to another."""
        tick_seconds, hurry_seconds = pace
        self._tick = tick
        self._fatal = fatal
        self._again_seconds = min(AGAIN_SECONDS, tick_seconds)
        self._hurry_seconds = min(hurry_seconds, self._again_seconds)
        defaults = {"coalesce": True, "misfire_grace_time": None, "max_instances": 1}
        executors = {"default": ThreadPoolExecutor(1)}
        self._scheduler = BackgroundScheduler(job_defaults=defaults, executors=executors, timezone=UTC)
        self._scheduler.add_job(self._guarded, "interval", seconds=tick_seconds, id="tick")

    def start(self) -> None:
        """Begin; the first tick comes at once."""
        self._scheduler.start()
        self.poke()

    def poke(self, after_seconds: float = 0.0) -> None:
        """Tick soon, because something changed."""
        if self._scheduler.running:
            soon = datetime.now(UTC) + timedelta(seconds=after_seconds)  # noqa: TID251 - the library's own time
            self._scheduler.modify_job("tick", next_run_time=soon)

    def stop(self) -> None:
        """End after the tick under way."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=True)

    def _guarded(self) -> None:
        """Tick; a failure is logged and tried again, but losing the lead is final."""
        try:
            decision = self._tick()
            if decision.advanced:
                self.poke(min(NEXT_SECONDS, self._hurry_seconds))
            elif decision.hurry:
                self.poke(self._hurry_seconds)
            elif decision.actions:
                self.poke(self._again_seconds)  # one step often makes the next one possible
        except Superseded as e:
            self._fatal(e)
        except Exception:
            log.exception("tick.failed")


class Repeated:
    """Calls `work` in a thread of its own every so many seconds, and sooner when poked. A failure is logged and tried again;
    losing the lead ends it.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], None],
        seconds: float,
        failed: str,
        stopping: threading.Event | None = None,
        at_once: bool = False,
    ) -> None:
        """`failed`: the name of a failure in the log. `stopping` is set when the work should end early. `at_once`: work at the
        start, too.
        """
        self._work, self._seconds, self._failed = work, seconds, failed
        self._stopping, self._poked = stopping or threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        if at_once:
            self._poked.set()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def poke(self) -> None:
        """Work now, because something changed."""
        self._poked.set()

    def stop(self) -> None:
        """End after the call under way."""
        self._stopping.set()
        self._poked.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        while True:
            self._poked.wait(self._seconds)
            self._poked.clear()
            if self._stopping.is_set():
                return
            try:
                self._work()
            except Superseded:
                return
            except Exception:
                log.exception(self._failed)
