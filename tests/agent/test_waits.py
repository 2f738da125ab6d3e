"""Which calls are begun again after a freeze, and how an image is changed for that."""

from __future__ import annotations

import ctypes
import math
import os
import struct
import subprocess
import sys
import time
from functools import partial

import pytest
from spotsurfer_agent.criu import interrupted_calls
from spotsurfer_agent.criu.images import BadImage
from spotsurfer_agent.criu.interrupted_calls import CALLS, Wait
from spotsurfer_agent.linux import userfaultfd
from spotsurfer_agent.linux.ptrace import Registers
from support.criu_images import image, message

EINTR, RESTART, NONE = 2**64 - 4, 2**64 - 516, 2**64 - 1
WAIT = Wait(10, 12, 3, 232, 0x401000)


def core(result: int, call: int, after: int) -> bytes:
    """Of a thread, as CRIU writes it: its own part, the registers in it, and what else there is."""
    registers = message(f1=1, f10=200, f11=result, f12=after, f16=call, f17=after, f18=51)
    return image(message(f1=1, f2=message(f1=4096, f2=registers), f3=message(f1=7)))


def test_an_image_makes_the_call_once_more():
    (found,) = interrupted_calls.places(interrupted_calls.again(core(EINTR, 232, 0x401000), WAIT), (2, 2))
    assert {field: found[field][0] for field in (1, 10, 11, 12, 16, 17, 18)} == {
        1: 1, 10: 200, 11: 232, 12: 0x401000, 16: 232, 17: 0x400FFE, 18: 51,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("result", "call", "after"), [(5, 232, 0x401000), (EINTR, NONE, 0x401000), (EINTR, 7, 0x401000), (EINTR, 232, 0x402000)]
)
def test_a_thread_that_is_past_its_call_is_left_alone(result, call, after):
    before = core(result, call, after)
    assert interrupted_calls.again(before, WAIT) == before
    registers = Registers(rax=result, orig_rax=call, rip=after)
    assert not interrupted_calls.begun(registers, WAIT)
    assert (registers.rax, registers.rip) == (result, after)


@pytest.mark.parametrize("result", [EINTR, RESTART])
def test_a_thread_makes_its_call_once_more(result):
    registers = Registers(rax=result, orig_rax=232, rip=0x401000)
    assert interrupted_calls.begun(registers, WAIT)
    assert (registers.rax, registers.orig_rax, registers.rip) == (232, NONE, 0x400FFE)


def test_an_image_that_is_none_is_told():
    with pytest.raises(BadImage):
        interrupted_calls.again(core(EINTR, 232, 1)[:-1], WAIT)
    with pytest.raises(BadImage):
        interrupted_calls.again(image(message(f2=message(f2=message(f11=1)))), WAIT)


def test_how_long_a_call_waits():
    times = ctypes.create_string_buffer(struct.pack("qq", 3, 500_000_000), 16)
    at = ctypes.addressof(times)
    me = os.getpid()
    assert CALLS[7](me, [0, 1, 0xFFFFFFFF]) == math.inf
    assert CALLS[232](me, [3, 0, 1, 2500]) == 2.5
    assert [CALLS[220](me, [0, 0, 1, x]) for x in (0, at)] == [math.inf, 3.5]
    assert [CALLS[35](me, [at, x]) for x in (0, at)] == [3.5, math.inf]
    assert [CALLS[202](me, [0, op, 0, at]) for op in (0, 128, 137)] == [3.5, 3.5, math.inf]
    assert math.isnan(CALLS[202](me, [0, 6, 0, at])), "of locks the kernel has its own ways"


def test_an_end_of_a_pipe_is_not_kept():
    """Who reads the pipe would wait for ever for its end."""
    reads, writes = os.pipe()
    assert math.isnan(CALLS[1](os.getpid(), [writes]))
    os.close(writes)
    os.set_blocking(reads, False)
    assert os.read(reads, 1) == b""
    os.close(reads)


WAITS = """
import ctypes, select
e, libc, found = select.epoll(), ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(12)
e.register(0, select.EPOLLIN)
print(flush=True)
print(libc.syscall(ctypes.c_long(232), e.fileno(), found, 1, -1), flush=True)
"""


def test_who_looks_at_writes_breaks_no_call_off():
    """Its memory is looked at while it waits for a descriptor."""
    with subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        while (wait := interrupted_calls.of_thread(process.pid, process.pid)) is None:
            time.sleep(0.01)
        assert wait.call == 232
        for _ in range(5):
            userfaultfd.WriteWatch(process.pid, partial(interrupted_calls.settle, process.pid)).close()
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == "1\n"
        process.stdin.close()
