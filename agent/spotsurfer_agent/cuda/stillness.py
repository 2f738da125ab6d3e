"""A job's threads held while its GPU memory is out: by ptrace around the driver's calls, by its control group around CRIU.

    lock │ ptrace ──▶ copy out │ freeze group, let go of ptrace │ CRIU │ ptrace again, thaw │ copy back ──▶ let go │ unlock

A thread that touched GPU memory in between would end its process (JAX's do). The driver needs one thread of each process, the
restore thread, which is spared. CRIU traces by itself, so both can't hold at once; the frozen group bridges that on the way out
and on the way back, so that no thread makes a step in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from spotsurfer_agent.holding import CantHold, Holder, thread_of


class Still:
    """Of one job. `stay(True)` has its control group frozen and kept so, `stay(False)` lets it go."""

    def __init__(self, stay: Callable[[bool], object]) -> None:
        self._stay, self._holder = stay, Holder()
        self.spared: dict[int, int] = {}  # process -> its restore thread; numbers here

    def begin(self, threads: Mapping[int, int]) -> None:
        """Hold all threads of these processes but these. Raises CantHold."""
        self.spared = {pid: thread for pid, number in threads.items() if (thread := thread_of(pid, number)) is not None}
        if missing := [pid for pid in threads if pid not in self.spared]:
            self.spared = {}
            raise CantHold(f"the driver names a thread of process {missing[0]} that is not there")
        try:
            self._holder.hold(list(self.spared), list(self.spared.values()))
        except CantHold:
            self.spared = {}
            raise

    def know(self, threads: Mapping[int, int]) -> None:
        """The restore threads of processes that were just restored and stand still."""
        found = {pid: thread_of(pid, number) for pid, number in threads.items()}
        self.spared = {pid: thread for pid, thread in found.items() if thread is not None}

    def hand_over(self) -> None:
        """Everything of the job stands still, traced by nobody."""
        self._stay(True)
        self._holder.release()

    def take_back(self, pids: Sequence[int]) -> None:
        """The reverse, from wherever it was; the spared ones run. Raises CantHold."""
        if not self.spared:  # nothing was held yet, or it was by an agent that is gone
            self._stay(False)
            return
        self._holder.hold(pids, list(self.spared.values()), thaw=lambda: self._stay(False))

    def end(self) -> None:
        """All may run."""
        self._holder.release()
        self._stay(False)
        self.spared = {}
