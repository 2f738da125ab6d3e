"""System calls that a freeze interrupts although no signal came: they are begun again, and the program does not notice.

The kernel or CRIU resumes most waits. The calls below return EINTR after any stop (see signal(7)), or lose the kernel's
note of them. The stopped tree shows which threads were in such a call. Its image and its threads are then changed so that
they make the same call once more. If a signal waits that may have a handler, EINTR is right and stays.

A wait of limited time begins again with its whole time. One of more than LONGEST_SECONDS is left alone: under repeated
saves the job would never reach its end.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from spotsurfer_wire.linux import syscalls

from spotsurfer_agent.criu.images import BadImage, places
from spotsurfer_agent.linux import ptrace

LONGEST_SECONDS = 15.0  # shorter than the least time between saves, `control.final_save_timing.INTERVAL_SECONDS_MIN`
LIMIT_MAX = 4096  # threads, because the tree stands still meanwhile
INSTRUCTION_BYTES = 2  # of `syscall`
_EINTR, _RESTART = 2**64 - 4, 2**64 - 516  # the result in such a thread's registers; the kernel's ERESTART_RESTARTBLOCK
_REGISTERS = (2, 2)  # path in a core entry: x86 part, general registers
_RESULT, _CALL, _NEXT = 11, 16, 17  # ax, orig_ax, ip
_FUTEX_COMMAND, _FUTEX_WAIT, _FUTEX_WAIT_BITSET = 0x7F, 0, 9
_ABSOLUTE = 1  # TIMER_ABSTIME
_SIGNALS = re.compile(rb"^(SigPnd|ShdPnd|SigBlk):\t([0-9a-f]+)$", re.MULTILINE)
_NUMBERS = re.compile(rb"^NSpid:.*?(\d+)$", re.MULTILINE)
_TIMES = struct.Struct("qq")  # struct timespec, struct timeval

Arguments = Sequence[int]


class Wait(NamedTuple):
    """A thread in an interrupted call."""

    pid: int
    thread: int
    inside: int  # the thread, as the job and its image number it
    call: int
    next: int  # address of the instruction behind it


def _milliseconds(index: int) -> Callable[[int, Arguments], float]:
    def limit(_: int, arguments: Arguments) -> float:
        (value,) = struct.unpack("i", struct.pack("I", arguments[index] & 0xFFFFFFFF))
        return math.inf if value < 0 else value / 1000

    return limit


def _time(index: int) -> Callable[[int, Arguments], float]:
    return lambda pid, arguments: _read_time(pid, arguments[index]) if arguments[index] else math.inf


def _sleep(asked: int, left: int) -> Callable[[int, Arguments], float]:
    """The kernel overwrites the requested time with the remaining one if the program gave one address for both."""
    return lambda pid, arguments: math.inf if arguments[asked] == arguments[left] else _read_time(pid, arguments[asked])


def _clock_sleep(pid: int, arguments: Arguments) -> float:
    """The kernel itself resumes a sleep until a point in time."""
    return math.nan if arguments[1] & _ABSOLUTE else _sleep(2, 3)(pid, arguments)


def _futex(pid: int, arguments: Arguments) -> float:
    command = arguments[1] & _FUTEX_COMMAND
    if command == _FUTEX_WAIT_BITSET:  # until a point in time
        return math.inf
    return _time(3)(pid, arguments) if command == _FUTEX_WAIT else math.nan


def _socket(option: int) -> Callable[[int, Arguments], float]:
    def limit(pid: int, arguments: Arguments) -> float:
        try:
            with syscalls.borrowed_socket(pid, arguments[0]) as s:
                seconds, micros = _TIMES.unpack(s.getsockopt(socket.SOL_SOCKET, option, _TIMES.size))
        except OSError as e:
            if e.errno == errno.ENOTSOCK:
                return math.nan
            raise
        return seconds + micros / 1e6 or math.inf

    return limit


def _none(_: int, __: Arguments) -> float:
    return math.inf


_RECEIVES, _SENDS = _socket(socket.SO_RCVTIMEO), _socket(socket.SO_SNDTIMEO)
# By call number on x86-64: the longest wait in seconds, from the arguments. `connect` and `close` are never repeated.
CALLS: dict[int, Callable[[int, Arguments], float]] = {
    7: _milliseconds(2),  # poll
    232: _milliseconds(3),  # epoll_wait
    281: _milliseconds(3),  # epoll_pwait
    441: _time(3),  # epoll_pwait2
    65: _none,  # semop
    220: _time(3),  # semtimedop
    128: _time(2),  # rt_sigtimedwait
    208: _time(4),  # io_getevents
    333: _time(4),  # io_pgetevents
    35: _sleep(0, 1),  # nanosleep
    230: _clock_sleep,  # clock_nanosleep
    202: _futex,
    449: _none,  # futex_waitv, until a point in time
    0: _RECEIVES,  # read, and readv, recvfrom, recvmsg, accept, accept4: of a socket with a limit
    19: _RECEIVES,
    45: _RECEIVES,
    47: _RECEIVES,
    43: _RECEIVES,
    288: _RECEIVES,
    1: _SENDS,  # write, and writev, sendto, sendmsg: nothing of it was sent
    20: _SENDS,
    44: _SENDS,
    46: _SENDS,
}


def _read_time(pid: int, address: int) -> float:
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        seconds, rest = _TIMES.unpack(memory.read(_TIMES.size))
    return float(seconds + rest / 1e9)


def found(pids: Iterable[int]) -> list[Wait]:
    """Threads of these processes, which stand still, that are in such a call. Never raises."""
    waits: list[Wait] = []
    if os.uname().machine != "x86_64":
        return waits
    for pid in pids:
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 -- names are wanted
                if (wait := of_thread(pid, int(name))) is not None:
                    waits.append(wait)
    return waits[:LIMIT_MAX]


def of_thread(pid: int, thread: int) -> Wait | None:
    """The call that this stopped thread must make once more. Never raises."""
    try:
        call, *rest = _read(f"/proc/{pid}/task/{thread}/syscall").split()
        if len(rest) != 8 or (limit := CALLS.get(int(call))) is None:
            return None
        *arguments, _, after = (int(x, 16) for x in rest)
        seconds = limit(pid, arguments)
        if not (seconds <= LONGEST_SECONDS or seconds == math.inf):
            return None
        status = _read(f"/proc/{thread}/status")
        signals = {name: int(mask, 16) for name, mask in _SIGNALS.findall(status)}
        if (signals[b"SigPnd"] | signals[b"ShdPnd"]) & ~signals[b"SigBlk"]:
            return None
        return Wait(pid, thread, int(_NUMBERS.findall(status)[-1]), int(call), after)
    except (OSError, ValueError, LookupError, struct.error):  # the thread ended, or waits for something else
        return None


def _read(name: str) -> bytes:
    """Read a small file of /proc, with little overhead, because there are many."""
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def told(rows: object) -> list[Wait]:
    """The waits from the shim's report; older shims report none."""
    return [Wait(*row) for row in rows] if isinstance(rows, list) else []


def mend(images: Path, waits: Iterable[Wait]) -> None:
    """Change the image of a stopped tree: after a restore its threads make the calls once more. Raises OSError, BadImage."""
    for wait in waits:
        path = images / f"core-{wait.inside}.img"
        before = path.read_bytes()
        after = again(before, wait)
        if after != before:
            path.write_bytes(after)


def again(core: bytes, wait: Wait) -> bytes:
    """A thread's `core-*.img`, changed so that it makes its call next. Raises BadImage."""
    out = bytearray(core)
    try:
        for registers in places(core, _REGISTERS):
            (result, at), (call, _), (after, behind) = (registers[f] for f in (_RESULT, _CALL, _NEXT))
            if (result, call, after) == (_EINTR, wait.call, wait.next):
                _put(out, at, call)
                _put(out, behind, after - INSTRUCTION_BYTES)
    except (IndexError, KeyError, struct.error) as e:
        raise BadImage(f"the registers of thread {wait.inside} can't be read: {type(e).__name__}") from e
    return bytes(out)


def _put(out: bytearray, at: int, value: int) -> None:
    """Overwrite a number with a smaller one, padded to as many bytes."""
    while out[at] > 127:
        out[at] = value & 127 | 128
        value >>= 7
        at += 1
    out[at] = value


def let_run(waits: Sequence[Wait], thaw: Callable[[], None]) -> None:
    """Thaw a control group; its threads make these calls once more. Raises what `thaw` raises."""
    if not waits:
        thaw()
        return
    raised: list[OSError] = []
    # In a thread of its own: threads that it could not let go are let go when it ends.
    held = threading.Thread(target=_let_run, args=(waits, thaw, raised))
    held.start()
    held.join()
    if raised:
        raise raised[0]


def _let_run(waits: Sequence[Wait], thaw: Callable[[], None], raised: list[OSError]) -> None:
    seized = [wait for wait in waits if _seized(wait.thread)]
    try:
        thaw()
    except OSError as e:
        raised.append(e)
        return
    for wait in seized:
        with contextlib.suppress(OSError):
            ptrace.await_stop(wait.thread)
            ptrace.changed(wait.thread, lambda registers, wait=wait: begun(registers, wait))  # type: ignore[misc]
        with contextlib.suppress(OSError):
            ptrace.let_go(wait.thread)


def _seized(thread: int) -> bool:
    with contextlib.suppress(OSError):
        ptrace.seize(thread)
        return True
    return False


def settle(process: int, registers: ptrace.Registers) -> None:
    """Make the first thread of a process, which we stopped and which has these registers, repeat its call."""
    if (wait := of_thread(process, process)) is not None:
        begun(registers, wait)


def begun(registers: ptrace.Registers, wait: Wait) -> bool:
    """Set a thread's registers so that it makes its call next; False if the call is over."""
    if registers.rax not in (_EINTR, _RESTART) or (registers.orig_rax, registers.rip) != (wait.call, wait.next):
        return False
    registers.rax, registers.orig_rax, registers.rip = wait.call, 2**64 - 1, wait.next - INSTRUCTION_BYTES
    return True
