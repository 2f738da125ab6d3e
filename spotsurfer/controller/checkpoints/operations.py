"""Long operations that a user asked for: they run in the background, report their progress, and can be cancelled."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from spotsurfer.model.errors import Conflict, NotFound, SpotsurferError

log = structlog.get_logger()
KEEP = 50  # finished ones that are remembered
AT_ONCE = 4


class CalledOff(Conflict):
    """The user cancelled the operation."""


@dataclass
class Operation:
    """One piece of work. `result` or `error` when it is `done`."""

    id: str
    what: str
    done: bool = False
    stage: str = ""
    at: int = 0
    of: int = 0
    result: dict[str, Any] | None = None
    error: SpotsurferError | None = None
    called_off: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def progress(self, stage: str, at: int = 0, of: int = 0) -> None:
        """Report progress; raises CalledOff if the operation was cancelled."""
        self.stage, self.at, self.of = stage, at, of
        if self.called_off.is_set():
            raise CalledOff(f"{self.what} was called off")


Work = Callable[[Operation], dict[str, Any]]


class Operations:
    """Operations under way and the last finished ones. None outlives the controller, and nothing relies on that."""

    def __init__(self) -> None:
        self._all: dict[str, Operation] = {}
        self._lock = threading.Lock()

    def start(self, what: str, work: Work) -> Operation:
        """Begin. Raises Conflict if too many run."""
        with self._lock:
            if sum(not e.done for e in self._all.values()) >= AT_ONCE:
                raise Conflict(f"{AT_ONCE} long commands run already: wait for one of them to end")
            for old in [e.id for e in self._all.values() if e.done][:-KEEP]:
                del self._all[old]
            operation = Operation(secrets.token_hex(8), what)
            self._all[operation.id] = operation
        threading.Thread(target=self._run, args=(operation, work), name=f"operation-{what}", daemon=True).start()
        return operation

    def look(self, number: str, wait_seconds: float = 0.0) -> Operation:
        """The operation; waits at most `wait_seconds` for its end. Raises NotFound."""
        operation = self._all.get(number)
        if operation is None:
            raise NotFound("that command is not known any more: the controller was restarted; repeat it")
        operation.ended.wait(wait_seconds)
        return operation

    def call_off(self, number: str) -> None:
        """Cancel it; its work so far stays consistent."""
        self.look(number).called_off.set()

    def stop(self) -> None:
        """Cancel all operations, because the controller ends."""
        for operation in list(self._all.values()):
            operation.called_off.set()

    def _run(self, operation: Operation, work: Work) -> None:
        try:
            operation.result = work(operation)
        except SpotsurferError as e:
            operation.error = e
        except Exception as e:
            log.exception("errand.failed", what=operation.what)
            operation.error = SpotsurferError(f"{operation.what} failed inside: {e}")
        operation.done = True
        operation.ended.set()
