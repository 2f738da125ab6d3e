"""Scenes on a minibox of programs whose memory is laid out as few are: very many mappings, pages that may not be read."""

from __future__ import annotations

import sys

from spotsurfer_wire.messages import Spec
from spotsurfer_wire.store.obstore import open_store
from support.engine_kit import JOB, STORE, W, engine, newest, output, request, until

PROGRAM = """
import ctypes, mmap, sys, time
libc, pages, closed = ctypes.CDLL(None, use_errno=True), int(sys.argv[1]), int(sys.argv[2])
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
m = mmap.mmap(-1, pages * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for i in range(pages): m[i * 4096:i * 4096 + 4] = i.to_bytes(4, "big")
at = ctypes.addressof(ctypes.c_char.from_buffer(m))
def protect(how):
    for i in range(0, closed, 2):
        if libc.mprotect(at + i * 4096, 4096, how): sys.exit("mprotect")
protect(0)
print("begun", flush=True)
n = 0
while True:
    n += 1; print("turn", n, flush=True); time.sleep(0.02)
    if n % 20 == 0:
        protect(3)
        assert all(m[i * 4096:i * 4096 + 4] == i.to_bytes(4, "big") for i in range(pages)), "not what was written"
        protect(0)
        print("whole", n, flush=True)
"""


def survives(pages: int, closed: int, mappings: int) -> None:
    """Saved live, moved and checked by itself."""
    e = engine()
    spec = Spec(JOB, ["/usr/bin/python3", "-u", "-c", PROGRAM, str(pages), str(closed)])
    e.start(spec)
    until(lambda: b"turn" in output(e))
    assert sum(1 for _ in open(f"/proc/{e.pids()[-1]}/maps")) >= mappings  # noqa: SIM115, PTH123
    facts = e.save(request(1, final=False))
    assert facts.ahead_seconds > 0, "some of it was copied while it ran"
    whole(e)
    e.save(request(2, final=True))
    e.kill()
    e.restore(newest(open_store(STORE)), spec)
    whole(e)
    e.kill()


def whole(e) -> None:
    seen = output(e).count(b"whole")
    until(lambda: output(e).count(b"whole") > seen or e.status().state is not W.RUNNING)
    assert e.status().state is W.RUNNING, output(e, "err")


def guard_pages() -> None:
    """Pages that hold something and may not be read: CRIU saves them, and who reads as the process would does not."""
    survives(8192, 400, 400)


def many_mappings() -> None:
    survives(40000, 40000, 40000)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
