"""ptrace(2): system calls made by a process on our behalf, and threads that are held still."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from spotsurfer_wire.linux import procfs

# ---- System calls made by a process of the job on our behalf, while one of its threads is stopped for a moment. See ptrace(2).
#
# Nothing is written to the process's memory: the thread runs the `syscall` instruction of its own vdso and returns. Every
# signal is held back meanwhile, and an interrupted system call of the thread's own is made once more
# (`criu.interrupted_calls`).

_CONT, _DETACH, _SYSCALL, _GETREGS, _SETREGS = 7, 17, 24, 12, 13
_SEIZE, _INTERRUPT, _GETSIGMASK, _SETSIGMASK = 0x4206, 0x4207, 0x420A, 0x420B
_TRACESYSGOOD, _SUSPEND_SECCOMP = 1, 1 << 21  # a filter of the job's must not kill it for our call
_STOP_EVENT = 128
_WALL = 0x40000000
_ALL_SIGNALS = (1 << 64) - 1
_STOP_SECONDS = 1.0
_HOLD_SECONDS = 5.0
_CALL_SECONDS = 300.0  # a thread in our call must come back, even if its control group is frozen meanwhile
_LOOK_SECONDS = 0.0001
_INSTRUCTION = b"\x0f\x05"  # syscall, on x86-64
_libc = ctypes.CDLL(None, use_errno=True)
_ptrace = _libc.ptrace
_ptrace.restype = ctypes.c_long
_ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


class Registers(ctypes.Structure):
    """struct user_regs_struct of sys/user.h, x86-64."""

    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
            *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
        )
    )


class Caller:
    """A stopped thread that makes calls."""

    def __init__(self, pid: int, instruction: int, before: Registers) -> None:
        self._pid, self._instruction, self._before = pid, instruction, before

    def call(self, number: int, *arguments: int) -> int:
        """Make a system call with up to six numbers as arguments; its result. Raises OSError with its errno."""
        regs = Registers.from_buffer_copy(self._before)
        regs.rip, regs.rax, regs.orig_rax = self._instruction, number, _ALL_SIGNALS
        for name, value in zip(("rdi", "rsi", "rdx", "r10", "r8", "r9"), arguments, strict=False):
            setattr(regs, name, value)
        _ask(_SETREGS, self._pid, data=ctypes.addressof(regs))
        for _ in ("entry", "exit"):
            _ask(_SYSCALL, self._pid)
            _await(self._pid, _is_call, _SYSCALL, _CALL_SECONDS)
        _ask(_GETREGS, self._pid, data=ctypes.addressof(regs))
        result = ctypes.c_int64(regs.rax).value
        if -4096 < result < 0:
            raise OSError(-result, os.strerror(-result))
        return result


@contextlib.contextmanager
def stopped(pid: int, settle: Callable[[Registers], object]) -> Iterator[Caller]:
    """Stop one thread; it goes on with the registers that `settle` leaves. All calls come from the calling thread.

    A thread that can't be stopped, because its control group is frozen, is let go only when the calling thread ends. Raises
    OSError.
    """
    instruction = _instruction(pid)
    _ask(_SEIZE, pid, data=_TRACESYSGOOD | _SUSPEND_SECCOMP)
    mask, nothing = ctypes.c_uint64(), ctypes.c_uint64(_ALL_SIGNALS)
    before = Registers()
    try:
        _ask(_INTERRUPT, pid)
        _await(pid, _is_stop, _CONT, _STOP_SECONDS)
        _ask(_GETREGS, pid, data=ctypes.addressof(before))
        _ask(_GETSIGMASK, pid, 8, ctypes.addressof(mask))
        _ask(_SETSIGMASK, pid, 8, ctypes.addressof(nothing))
        settle(before)
        try:
            yield Caller(pid, instruction, before)
        finally:
            _ask(_INTERRUPT, pid)
            _ask(_CONT, pid)
            _await(pid, _is_stop, _CONT, _CALL_SECONDS)  # before its next instruction, at which its own call begins again
            _ask(_SETREGS, pid, data=ctypes.addressof(before))
            _ask(_SETSIGMASK, pid, 8, ctypes.addressof(mask))
    finally:
        with contextlib.suppress(OSError):  # it has ended
            _ask(_DETACH, pid)


def seize(tid: int) -> None:
    """Make a thread stop as soon as it can, without waiting for that. Raises OSError."""
    _ask(_SEIZE, tid)
    _ask(_INTERRUPT, tid)


def await_stop(tid: int) -> None:
    """Wait until a thread that was seized stands still. Raises OSError."""
    _await(tid, _is_stop, _CONT, _HOLD_SECONDS)


def changed(tid: int, change: Callable[[Registers], bool]) -> None:
    """Let `change` edit the registers of a seized, stopped thread; they are set if it returns True. Raises OSError."""
    registers = Registers()
    _ask(_GETREGS, tid, data=ctypes.addressof(registers))
    if change(registers):
        _ask(_SETREGS, tid, data=ctypes.addressof(registers))


def let_go(tid: int) -> None:
    """Let a seized thread go on; an ended one is reaped. Raises OSError."""
    try:
        _ask(_DETACH, tid)
    except ProcessLookupError:
        _reap(tid)


def _reap(tid: int) -> None:
    """Reap an ended thread: only its tracer is notified, and the process can't end before."""
    end = time.monotonic() + _HOLD_SECONDS
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < end:
            found, status = os.waitpid(tid, _WALL | os.WNOHANG)
            if found and not os.WIFSTOPPED(status):
                return
            time.sleep(_LOOK_SECONDS)


def _instruction(pid: int) -> int:
    """Address of a `syscall` instruction of the process. Raises OSError."""
    for m in procfs.mappings(procfs.text(pid, "maps")):
        if m.name == "[vdso]":
            with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
                memory.seek(m.start)
                at = memory.read(m.end - m.start).find(_INSTRUCTION)
            if at >= 0:
                return m.start + at
    raise OSError(0, f"process {pid} has no instruction for system calls at a known place")


def _is_stop(status: int) -> bool:
    return status >> 16 == _STOP_EVENT


def _is_call(status: int) -> bool:
    return os.WSTOPSIG(status) == signal.SIGTRAP | 0x80


def _await(pid: int, wanted: Callable[[int], bool], onward: int, seconds: float) -> None:
    """Wait for this kind of stop. Other stops are the job's own signals, which are delivered. Raises OSError."""
    end = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(pid, _WALL | os.WNOHANG)
        if not found:
            if time.monotonic() > end:
                raise TimeoutError(f"process {pid} does not stop")
            time.sleep(_LOOK_SECONDS)
        elif not os.WIFSTOPPED(status):
            raise ProcessLookupError(f"process {pid} has ended")
        elif wanted(status):
            return
        else:
            _ask(onward, pid, data=0 if status >> 16 else os.WSTOPSIG(status))


def _ask(request: int, pid: int, address: int = 0, data: int = 0) -> None:
    ctypes.set_errno(0)
    if _ptrace(request, pid, address, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


# ---- Threads that ptrace(2) holds still, with exceptions. If the agent dies, the kernel lets them go.

SCANS_MAX = 20  # give up on a process that begins threads faster than they can be stopped


class CantHold(Exception):
    """Nothing could be held; a sentence."""


class Holder:
    """One tracer. ptrace ties a stopped thread to its tracer, so one thread of ours makes all the calls."""

    def __init__(self) -> None:
        from concurrent.futures import ThreadPoolExecutor  # takes 3 MB, and shims, which load this file, hold nobody

        self._tracer = ThreadPoolExecutor(1, thread_name_prefix="holder")
        self._held: set[int] = set()
        self._coming: set[int] = set()  # of these, not seen to stand still yet

    @property
    def held(self) -> frozenset[int]:
        """Threads that stand still, by their numbers here."""
        return frozenset(self._held)

    def hold(self, pids: Collection[int], spared: Collection[int], thaw: Callable[[], object] | None = None) -> None:
        """Stop all threads of these processes but the spared ones. Raises CantHold.

        `thaw`: thaws their frozen control group, once all of them will stop before their next instruction.
        """
        try:
            self._tracer.submit(self._hold, pids, frozenset(spared), thaw).result()
        except OSError as e:
            self.release()
            raise CantHold(f"its threads can't be held still: {e.strerror or e}") from e

    def release(self) -> None:
        """Let all of them go on unchanged. Idempotent."""
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
        """Seize the threads that were not held yet; returns them."""
        fresh = []
        for tid in [t for pid in pids for t in _threads(pid) if t not in spared and t not in self._held]:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                seize(tid)
                self._held.add(tid)
                self._coming.add(tid)
                fresh.append(tid)
        return fresh

    def _await(self, tid: int) -> None:
        try:
            await_stop(tid)
        except ProcessLookupError:
            self._held.discard(tid)
        self._coming.discard(tid)

    def _release(self) -> None:
        for tid in self._held:
            with contextlib.suppress(OSError):  # it has ended
                if tid in self._coming:  # only a stopped thread can be let go
                    await_stop(tid)
                let_go(tid)
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
