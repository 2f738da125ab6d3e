"""Fingerprints made by processes beside the agent, on a machine with processors to spare.

One thread at a time may run Python, and each page is a call, so the threads that read a job's memory wait for the digests.
A worker has a Python of its own and reads the pages from the agent's memory (docs/gpu.md tells what that gains).
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import struct
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path

from spotsurfer_wire.linux.buffers import PAGE

from spotsurfer_agent.chunks.fingerprints import PRINT, Printer

log = logging.getLogger(__name__)

PROCESSORS_EACH = 4  # of the machine: the others read, hash and send meanwhile
WORKERS_MAX = 4
WORTH_BYTES = 1 << 30  # for a smaller job nobody starts workers
_PIECE_BYTES = 1 << 20
_ASK = struct.Struct("=QQ")  # address and length


def useful(expected_bytes: int) -> int:
    """How many workers help to save so much memory on this machine."""
    many = len(os.sched_getaffinity(0)) // PROCESSORS_EACH
    return min(many, WORKERS_MAX) if many > 1 and expected_bytes >= WORTH_BYTES else 0


class Printing:
    """Makes fingerprints for any thread: by workers, or in the calling thread if there are none or one has failed."""

    def __init__(self, secret: bytes, workers: int = 0) -> None:
        """`secret`: that of `Keys.prints`. The workers are started here. Raises OSError."""
        self._secret, self._printers = secret, deque[Printer]()
        self._asking = threading.Lock()
        self._workers: list[subprocess.Popen[bytes]] = []
        command = [sys.executable, "-m", __name__, str(os.getpid())]
        for _ in range(workers):
            self._workers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            self._to(self._workers[-1], secret)

    def of_pages(self, data: memoryview) -> bytes:
        """As `Printer.of_pages`. With workers `data` must be writable memory."""
        with self._asking:
            if self._workers:
                try:
                    return self._by_workers(data)
                except OSError as e:
                    log.warning("the save goes on without helpers for fingerprints: %s", e)
                    self._end()
        printer = self._printers.pop() if self._printers else Printer(self._secret)
        made = printer.of_pages(data)
        self._printers.append(printer)
        return made

    def _by_workers(self, data: memoryview) -> bytes:
        begin = ctypes.addressof(ctypes.c_char.from_buffer(data))
        step = -(-len(data) // (PAGE * len(self._workers))) * PAGE
        lengths = [min(step, len(data) - at) for at in range(0, len(data), step)]
        for n, (worker, length) in enumerate(zip(self._workers, lengths, strict=False)):
            self._to(worker, _ASK.pack(begin + n * step, length))
        return b"".join([_answer(*each) for each in zip(self._workers, lengths, strict=False)])

    def _to(self, worker: subprocess.Popen[bytes], data: bytes) -> None:
        assert worker.stdin is not None
        worker.stdin.write(data)
        worker.stdin.flush()

    def end(self) -> None:
        """No more pages are handed to workers. A thread that waits for one goes on without it. Idempotent."""
        for worker in self._workers:
            worker.kill()
        with self._asking:
            self._end()

    def _end(self) -> None:
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.kill()
            worker.communicate()


def _answer(worker: subprocess.Popen[bytes], length: int) -> bytes:
    """Raises OSError if the worker has ended."""
    assert worker.stdout is not None
    wanted = -(-length // PAGE) * PRINT
    made = worker.stdout.read(wanted)
    if len(made) < wanted:
        raise OSError(0, f"a helper ended with {worker.wait()}")
    return made


def main() -> None:
    """A worker: its standard input has the secret, then addresses and lengths in the memory of the process in `argv`."""
    asked, told = sys.stdin.buffer, sys.stdout.buffer
    printer = Printer(asked.read(2 * PRINT))
    buffer = memoryview(bytearray(_PIECE_BYTES))
    with Path(f"/proc/{sys.argv[1]}/mem").open("rb", buffering=0) as memory:
        while len(ask := asked.read(_ASK.size)) == _ASK.size:
            at, length = _ASK.unpack(ask)
            for begin in range(at, at + length, _PIECE_BYTES):
                piece = buffer[: min(_PIECE_BYTES, at + length - begin)]
                if os.preadv(memory.fileno(), [piece], begin) < len(piece):
                    raise OSError(0, "the agent's memory can't be read")
                told.write(printer.of_pages(piece))
            told.flush()


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):  # the agent has ended
        main()
