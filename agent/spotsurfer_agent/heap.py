"""What malloc keeps of this process's memory."""

from __future__ import annotations

import ctypes

_libc = ctypes.CDLL(None, use_errno=True)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_M_ARENA_MAX = -8
_BUFFER_BYTES = 32 << 20  # the most that glibc takes
_IDLE_BYTES = 256 << 20
_USUAL_BYTES = 128 << 10  # glibc's own value of both


def share_heap() -> None:
    """Threads that begin from now on share one heap: what is free at the end of a heap of their own is never given back, and
    a save or two would leave hundreds of megabytes there.
    """
    option = getattr(_libc, "mallopt", None)
    if option is not None:
        option(ctypes.c_int(_M_ARENA_MAX), ctypes.c_int(1))


def reuse_memory() -> None:
    """Let buffers of some megabytes be used again instead of being given back each time: the first touch of every page costs
    more than what is done with it. `trim_memory` gives it back. See mallopt(3); other C libraries than glibc do as they do.
    """
    share_heap()
    _keep_free(_BUFFER_BYTES, _IDLE_BYTES)


def return_memory() -> None:
    """Give every buffer of some hundred kilobytes back to the machine when it is done with. The C library would keep as much as
    it ever saw in use. For processes that live long and move much data now and then.
    """
    share_heap()
    _keep_free(_USUAL_BYTES, _USUAL_BYTES)


def trim_memory() -> None:
    """Give memory that this process does not use any more back to the machine, if its C library can.

    It ends `reuse_memory`: large buffers go back by themselves again. It takes some milliseconds after a save of gigabytes.
    """
    _keep_free(_USUAL_BYTES, _USUAL_BYTES)
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def _keep_free(mapped_from: int, idle: int) -> None:
    """Buffers of so many bytes get a mapping of their own, and so much may lie free at the end of the heap."""
    option = getattr(_libc, "mallopt", None)
    if option is not None:
        option(ctypes.c_int(_M_MMAP_THRESHOLD), ctypes.c_int(mapped_from))
        option(ctypes.c_int(_M_TRIM_THRESHOLD), ctypes.c_int(idle))
