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

from spotsurfer_wire.linux import syscalls
from spotsurfer_wire.linux.buffers import PAGE

from spotsurfer_agent.chunks.fingerprints import PRINT, Printer
from spotsurfer_agent.linux.processors import worker_count

log = logging.getLogger(__name__)

WORKERS_MAX, PROCESSORS_EACH = 6, 2
WORTH_BYTES = 1 << 30  # for a smaller job nobody starts workers
_PIECE_BYTES = 1 << 20
_ASK = struct.Struct("=QQ")  # address and length
Worker = subprocess.Popen[bytes]


def useful(expected_bytes: int) -> int:
    """How many workers help to save so much memory on this machine."""
    return worker_count(expected_bytes, WORTH_BYTES, WORKERS_MAX, PROCESSORS_EACH)


class Printing:
    """Makes fingerprints for any thread: by workers, or in the calling thread if there are none or one has failed.

    A call takes all workers that are idle, and waits for one: the pages of one thread are shared out, those of many go side by
    side.
    """

    def __init__(self, secret: bytes, workers: int = 0) -> None:
        """`secret`: that of `Keys.prints`. The workers are started here."""
        self._secret, self._printers = secret, deque[Printer]()
        self._change = threading.Condition()
        self._workers: list[Worker] = []
        self._idle: list[Worker] = []
        command = [sys.executable, "-m", __name__, str(os.getpid())]
        try:
            for _ in range(workers):
                self._workers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
                self._idle.append(self._workers[-1])
                _tell(self._workers[-1], secret)
        except OSError as e:
            self._go_on_without(e)

    @property
    def workers(self) -> int:
        """How many there are now."""
        return len(self._workers)

    def of_pages(self, data: memoryview) -> bytes:
        """As `Printer.of_pages`. With workers `data` must be writable memory."""
        if (made := self._by_workers(data)) is not None:
            return made
        printer = self._printers.pop() if self._printers else Printer(self._secret)
        made = printer.of_pages(data)
        self._printers.append(printer)
        return made

    def _by_workers(self, data: memoryview) -> bytes | None:
        """None: there are none, or one has failed."""
        with self._change:
            self._change.wait_for(lambda: self._idle or not self._workers)
            if not self._workers:
                return None
            workers, self._idle = self._idle, []
        try:
            return _shared_out(data, workers)
        except OSError as e:
            failure = e
        finally:
            with self._change:
                self._idle += workers
                self._change.notify_all()
        self._go_on_without(failure)
        return None

    def _go_on_without(self, e: OSError) -> None:
        log.warning("the save goes on without helpers for fingerprints: %s", e)
        self.end()

    def end(self) -> None:
        """No more pages are handed to workers. A thread that waits for one goes on without it. Idempotent."""
        with self._change:
            gone, self._workers = self._workers, []
            for worker in gone:
                worker.kill()
            self._change.notify_all()
            self._change.wait_for(lambda: len(self._idle) >= len(gone))  # whoever uses one gives it back
        for worker in gone:
            worker.communicate()


def _shared_out(data: memoryview, workers: list[Worker]) -> bytes:
    """Raises OSError if a worker has ended."""
    begin = _address(data)
    step = -(-len(data) // (PAGE * len(workers))) * PAGE
    lengths = [min(step, len(data) - at) for at in range(0, len(data), step)]
    for n, (worker, length) in enumerate(zip(workers, lengths, strict=False)):
        _tell(worker, _ASK.pack(begin + n * step, length))
    return b"".join([_answer(*each) for each in zip(workers, lengths, strict=False)])


def _address(data: memoryview | bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(data))


def _tell(worker: Worker, data: bytes) -> None:
    """Raises OSError if the worker has ended."""
    assert worker.stdin is not None
    worker.stdin.write(data)
    worker.stdin.flush()


def _answer(worker: Worker, length: int) -> bytes:
    """Raises OSError if the worker has ended."""
    assert worker.stdout is not None
    wanted = -(-length // PAGE) * PRINT
    made = worker.stdout.read(wanted)
    if len(made) < wanted:
        raise OSError(0, f"a helper ended with {worker.wait()}")
    return made


def main() -> None:
    """A worker: its standard input has the secret, then addresses and lengths in the memory of the process in `argv`."""
    agent, asked, told = int(sys.argv[1]), sys.stdin.buffer, sys.stdout.buffer
    if len(secret := asked.read(2 * PRINT)) < 2 * PRINT:
        return  # the agent has ended
    printer = Printer(secret)
    buffer, vector = memoryview(bytearray(_PIECE_BYTES)), bytearray(_ASK.size)
    while len(ask := asked.read(_ASK.size)) == _ASK.size:
        at, length = _ASK.unpack(ask)
        for begin in range(at, at + length, _PIECE_BYTES):
            piece = buffer[: min(_PIECE_BYTES, at + length - begin)]
            _ASK.pack_into(vector, 0, begin, len(piece))
            if syscalls.read_memory(agent, _address(piece), len(piece), _address(vector), 1) < len(piece):
                raise OSError(0, "the agent's memory can't be read")
            told.write(printer.of_pages(piece))
        told.flush()


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):  # the agent has ended
        main()
