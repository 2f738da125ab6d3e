"""What runs beside the loop: the keeper of checkpoints, rehearsals, and long commands of users."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from spotsurfer_agent.storeport import CopyingStore, StoreError

from spotsurfer.controller.errands import Errands
from spotsurfer.controller.forks import Forks
from spotsurfer.controller.keeper import Keeper, Retention, Shop
from spotsurfer.controller.rehearsal import Rehearsals
from spotsurfer.controller.renewals import Renewals
from spotsurfer.controller.shelf import Shelf
from spotsurfer.model.ids import JobId
from spotsurfer.model.job import Job

log = structlog.get_logger()
TIDY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Verbs:
    """What the rest of the controller does for it."""

    new_id: Callable[[str], JobId]
    poke: Callable[[], None]
    cancel: Callable[[str], Job]


class Background:
    """Started and stopped as one."""

    def __init__(self, shop: Shop, store: CopyingStore, retention: Retention, verbs: Verbs, renewals: Renewals) -> None:
        self.keeper = Keeper(shop, retention)
        self.errands = Errands()
        self.renewals = renewals
        self.forks = Forks(shop, store, self.keeper, verbs.new_id, verbs.poke)
        self.rehearsals = Rehearsals(shop, self.forks, self.keeper, verbs.cancel)
        self.shelf = Shelf(shop, self.keeper, self.forks, self.rehearsals, self.errands)
        self._stop = threading.Event()
        self._tidying = threading.Thread(target=self._tidy, name="tidy", daemon=True)

    def start(self) -> None:
        """Begin."""
        self.keeper.start()
        self.renewals.start()
        self._tidying.start()

    def stop(self) -> None:
        """End; what is under way is called off and left in a sound state."""
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
