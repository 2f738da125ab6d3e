"""The periodic tick, and the background work beside it: checkpoint GC, rehearsals, long operations.

The schedule holds a few periodic ticks in memory. It knows no due times of jobs: `decide` looks at everything each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from spotsurfer_wire.store.port import CopyingStore, StoreError

from spotsurfer.controller.checkpoints.checkpoint_api import CheckpointApi
from spotsurfer.controller.checkpoints.checkpoint_gc import CheckpointGc, CheckpointStore, Retention
from spotsurfer.controller.checkpoints.forks import Forks
from spotsurfer.controller.checkpoints.operations import Operations
from spotsurfer.controller.checkpoints.rehearsal import Rehearsals
from spotsurfer.controller.machines.store_credentials import Renewals
from spotsurfer.model.actions import Decision
from spotsurfer.model.errors import Superseded
from spotsurfer.model.job import Job, JobId

log = structlog.get_logger()
AGAIN_SECONDS = 0.5  # after a tick that acted; an action that keeps failing is not repeated more often
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


# ---- Background: checkpoint GC, rehearsals, and long commands of users, beside the loop

TIDY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Verbs:
    """Functions of the rest of the controller that the background work calls."""

    new_id: Callable[[str], JobId]
    poke: Callable[[], None]
    cancel: Callable[[str], Job]


class Background:
    """Started and stopped as one."""

    def __init__(
        self, shop: CheckpointStore, store: CopyingStore, retention: Retention, verbs: Verbs, renewals: Renewals
    ) -> None:
        self.keeper = CheckpointGc(shop, retention)
        self.errands = Operations()
        self.renewals = renewals
        self.forks = Forks(shop, store, self.keeper, verbs.new_id, verbs.poke)
        self.rehearsals = Rehearsals(shop, self.forks, self.keeper, verbs.cancel)
        self.shelf = CheckpointApi(shop, self.keeper, self.forks, self.rehearsals, self.errands)
        self._stop = threading.Event()
        self._tidying = threading.Thread(target=self._tidy, name="tidy", daemon=True)

    def start(self) -> None:
        """Begin."""
        self.keeper.start()
        self.renewals.start()
        self._tidying.start()

    def stop(self) -> None:
        """End; operations under way are cancelled and leave a consistent state."""
        self._stop.set()
        self.errands.stop()
        self.keeper.stop()
        self.renewals.stop()
        if self._tidying.is_alive():
            self._tidying.join(TIDY_SECONDS)

    def _tidy(self) -> None:
        while not self._stop.wait(TIDY_SECONDS):
            try:
                self.rehearsals.tidy()
            except StoreError as e:
                log.warning("keeper.trouble", job=None, error=str(e))
            except Exception:
                log.exception("keeper.failed")
