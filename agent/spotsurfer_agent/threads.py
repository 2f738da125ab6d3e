"""The agent's threads: one that repeats a look, one that does long work. Each can also be driven by hand, without a thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from spotsurfer_agent import clock, heap
from spotsurfer_agent.facts import Outcome, Task

log = logging.getLogger(__name__)
REST_SECONDS = 20.0  # between looks for memory that can be given back, which take some milliseconds


class Ticker:
    """Calls `look` each `seconds()`, or at once when poked, in a thread of its own. A failing look is logged and repeated."""

    def __init__(
        self, name: str, look: Callable[[], object], seconds: float | Callable[[], float], after: Callable[[], None]
    ) -> None:
        self._name, self._look, self._after = name, look, after
        self._seconds: Callable[[], float] = seconds if callable(seconds) else lambda: seconds
        self._poked, self._over = threading.Event(), threading.Event()

    def start(self) -> None:
        """Begin; a daemon thread, because a store that hangs must not keep the process alive."""
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def poke(self) -> None:
        """Look now."""
        self._poked.set()

    def stop(self) -> None:
        """No further look begins."""
        self._over.set()
        self._poked.set()

    @property
    def poked(self) -> bool:
        """A look is due at once."""
        return self._poked.is_set()

    def turn(self) -> float:
        """One look; the seconds until the next is due, unless somebody pokes before."""
        self._poked.clear()
        try:
            self._look()
        except Exception:
            log.exception("%s failed; it is repeated", self._name)
        self._after()
        return self._seconds()

    def _run(self) -> None:
        while not self._over.is_set():
            self._poked.wait(self.turn())


class Worker:
    """One long task at a time. `look` and `give` are for the loop; `run_one` is what the thread repeats."""

    def __init__(self, do: Callable[[Task], Outcome], after: Callable[[], None]) -> None:
        self._do, self._after = do, after
        self._lock, self._given = threading.Lock(), threading.Event()
        self._task: Task | None = None
        self._outcome: Outcome | None = None

    def look(self) -> tuple[Task | None, Outcome | None]:
        """The task under way, and how the last one ended (said once): both of the same instant."""
        with self._lock:
            outcome, self._outcome = self._outcome, None
            return self._task, outcome

    @property
    def busy(self) -> bool:
        """A task is under way."""
        return self._task is not None

    def give(self, task: Task) -> None:
        """Begin a task; there must be none."""
        with self._lock:
            assert self._task is None, f"{task} while {self._task} is under way"
            self._task = task
        self._given.set()

    def start(self) -> None:
        """Begin to work in a daemon thread."""
        threading.Thread(target=self._run, name="worker", daemon=True).start()

    def _run(self) -> None:
        while True:
            while not self._given.wait(REST_SECONDS):
                heap.trim_memory()  # what other threads left
            self.run_one()
            heap.trim_memory()  # only now nothing of the task is in use any more

    def run_one(self) -> None:
        """Do the task that was given, if any."""
        with self._lock:
            task = self._task
            self._given.clear()
        if task is None:
            return
        try:
            outcome = self._do(task)
        except Exception as e:
            log.exception("%s failed in a way that nobody foresaw", task)
            outcome = Outcome(
                task, clock.monotonic(), f"{task} failed: {e}" if str(e) else f"{task} failed: {type(e).__name__}"
            )
        with self._lock:
            self._task, self._outcome = None, outcome
        self._after()
