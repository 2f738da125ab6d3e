"""Threads that are made to stand still by ptrace(2), all but some. Should the agent die, the kernel lets them go."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from spotsurfer_agent import procfs, ptrace

SCANS_MAX = 20  # a process that begins threads faster than they can be stopped is not to be had


class CantHold(Exception):
    """Nothing is held; a sentence."""


class Holder:
    """One tracer: ptrace ties what is stopped to the thread that stopped it, so one thread of ours makes all the calls."""

    def __init__(self) -> None:
        self._tracer = ThreadPoolExecutor(1, thread_name_prefix="holder")
        self._held: set[int] = set()
        self._coming: set[int] = set()  # of these, who was not seen to stand still yet

    @property
    def held(self) -> frozenset[int]:
        """Threads that stand still, by their numbers here."""
        return frozenset(self._held)

    def hold(self, pids: Collection[int], spared: Collection[int], thaw: Callable[[], object] | None = None) -> None:
        """Stop all threads of these processes but the spared ones. Raises CantHold.

        `thaw`: their control group is frozen now, and is let go by this call once all of them will stop before their next
        instruction.
        """
        try:
            self._tracer.submit(self._hold, pids, frozenset(spared), thaw).result()
        except OSError as e:
            self.release()
            raise CantHold(f"its threads can't be held still: {e.strerror or e}") from e

    def release(self) -> None:
        """Let all of them go on as if nothing had been. Idempotent."""
        self._tracer.submit(self._release).result()

    def _hold(self, pids: Collection[int], spared: frozenset[int], thaw: Callable[[], object] | None) -> None:
        fresh = self._seized(pids, spared)
        if thaw is not None:
            thaw()
        for _ in range(SCANS_MAX):
            for tid in fresh:
                self._await(tid)
            fresh = [] if thaw is not None else self._seized(pids, spared)
            if not fresh:
                return
        raise OSError(0, "there are ever more of them")

    def _seized(self, pids: Iterable[int], spared: frozenset[int]) -> list[int]:
        """Those that were not held yet; each has been told to stop."""
        fresh = []
        for tid in [t for pid in pids for t in _threads(pid) if t not in spared and t not in self._held]:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                ptrace.seize(tid)
                self._held.add(tid)
                self._coming.add(tid)
                fresh.append(tid)
        return fresh

    def _await(self, tid: int) -> None:
        try:
            ptrace.await_stop(tid)
        except ProcessLookupError:
            self._held.discard(tid)
        self._coming.discard(tid)

    def _release(self) -> None:
        for tid in self._held:
            with contextlib.suppress(OSError):  # it has ended
                if tid in self._coming:  # only who stands still can be let go
                    ptrace.await_stop(tid)
                ptrace.let_go(tid)
        self._held.clear()
        self._coming.clear()


def thread_of(pid: int, number: int) -> int | None:
    """The thread of a process that has this number, here or inside; None = there is none."""
    threads = _threads(pid)
    if number in threads:
        return number
    with contextlib.suppress(OSError):
        return next((t for t in threads if procfs.number_inside(t) == number), None)
    return None


def _threads(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return sorted(int(p.name) for p in Path(f"/proc/{pid}/task").iterdir())
    return []
