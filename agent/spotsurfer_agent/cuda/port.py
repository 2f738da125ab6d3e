"""What a driver must be able to do. There are two, NVIDIA's and the stand-in of the tests; one test file asks both the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from spotsurfer_agent.cuda.cards import About
from spotsurfer_agent.cuda.states import State


class DriverUnfit(Exception):
    """This machine's driver, or its Python binding, can't save GPU memory; one sentence with the remedy."""


class Driver(Protocol):
    """Each call returns the name of its result, `states.OK` or an error; it blocks until the driver is done.

    Calls for different processes may be made at once, from different threads.
    """

    def about(self) -> About:
        """What there is now."""
        ...

    def state(self, pid: int) -> tuple[str, State | None]:
        """Of a process; an error where it has no CUDA or is gone. Waits while a call for this process is under way."""
        ...

    def restore_thread(self, pid: int) -> tuple[str, str]:
        """The thread of a process that does what the next calls want, by its number; the others need not run for it."""
        ...

    def lock(self, pid: int, timeout_ms: int) -> str:
        """Let its submitted work end and stop all further calls; after the timeout it is RUNNING again (NOT_READY)."""
        ...

    def checkpoint(self, pid: int) -> str:
        """Move its GPU memory into memory of the process itself and give the devices back."""
        ...

    def restore(self, pid: int, pairs: Sequence[tuple[str, str]]) -> str:
        """The reverse. `pairs`: UUIDs then and now of all GPUs that it could see; none = the same as then."""
        ...

    def unlock(self, pid: int) -> str:
        """Let its calls go on."""
        ...
