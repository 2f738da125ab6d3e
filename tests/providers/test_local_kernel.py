"""Namespaces for the children of a process."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Its child shares its memory for a while, as one that Popen starts does until the kernel has done its exec.
SHARED = """
import ctypes, os, signal
from spotsurfer_wire.linux import syscalls
libc = ctypes.CDLL(None)
libc.clone.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
stack = ctypes.create_string_buffer(1 << 16)
top = (ctypes.addressof(stack) + (1 << 16)) & ~15
CLONE_VM = 0x100
child = libc.clone(ctypes.cast(libc.usleep, ctypes.c_void_p), top, CLONE_VM | signal.SIGCHLD, 300_000)
assert child > 0
with syscalls.children_in_new_namespaces(5):
    pass
assert os.waitpid(child, os.WNOHANG)[0] == child, "it was let in with its memory shared"
"""


@pytest.mark.real
def test_a_child_that_still_shares_our_memory_is_waited_for() -> None:
    done = subprocess.run([sys.executable, "-c", SHARED], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
