"""Memory for an image, touched before the freeze, because a frozen job would otherwise wait for the first touches.

It comes in blocks. If the touched blocks do not suffice, more are made up to the limit (slower, but no slower than writing
files). Beyond the limit a caller waits until a block was sent and given back, and that time is counted.
"""

from __future__ import annotations

import mmap
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

BLOCK_BYTES = 16 << 20
BLOCKS_MIN = 4  # a file that ends, one that begins, and what is being sent of both
TAIL_BYTES = 1 << 20  # a rest of a block is worth using from this size on
SLACK_BYTES = 64 << 20  # what estimates of an image may be wrong by
FINAL_BYTES = 192 << 20  # a final save waits for its bytes to be durable anyway: no need to hold them
FIRST_GUESS = 0.15  # share of a job's pages that changed since its base, while none was measured
USED_FIRST_BYTES = 256 << 20  # with less on its way, the sender would have to wait for the readers
USED_FIRST_SECONDS = 0.04  # a block comes back sooner from a store that takes 400 MB/s
USED_FIRST_TRIES = 3  # after so many blocks that did not, the store counts as slower than that
PATIENCE_SECONDS = 60.0  # nothing was sent for so long: give up, the job stands still
CAUTION = 1.5  # pages change faster now and then
_HUGE, _POPULATE_WRITE = 14, 23  # madvise(2)


class Closed(Exception):
    """The save is over: there is no memory any more."""


class Exhausted(OSError):
    """No memory came back for too long; a sentence."""


@dataclass(eq=False, slots=True)
class Span:
    """A piece of a block. `uses` says how many still need it."""

    view: memoryview
    block: Block
    uses: int = 1

    @property
    def size(self) -> int:
        """Bytes of it."""
        return len(self.view)


class Block:
    """One mapping. It is free again when no span of it is in use."""

    def __init__(self, size: int) -> None:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        _advise(memory, _HUGE)
        if not _advise(memory, _POPULATE_WRITE):
            for at in range(0, size, mmap.PAGESIZE):
                memory[at] = 0
        self.memory, self.spans = memory, 0


class Reserve:
    """Blocks of one save. `take` and `give` may be called from any thread."""

    def __init__(self, touched_bytes: int, limit_bytes: int, block_bytes: int = BLOCK_BYTES) -> None:
        """Touches its memory now. It never holds more than `limit_bytes`, but at least BLOCKS_MIN blocks."""
        self._size = block_bytes
        self._limit = max(BLOCKS_MIN, limit_bytes // block_bytes)
        self._change = threading.Condition()
        self._free: deque[Block] = deque()
        self._tails: list[Span] = []
        self._made, self._closed = 0, False
        self.waited_seconds = 0.0
        self._used_first = 0  # tries left
        for _ in range(min(self._limit, -(-touched_bytes // block_bytes))):
            self._free.append(Block(block_bytes))
            self._made += 1

    def touch(self, wanted_bytes: int) -> None:
        """Have so much free memory that was touched before, as far as the limit allows."""
        while True:
            with self._change:
                if self._closed or self._made >= self._limit or len(self._free) * self._size >= wanted_bytes:
                    return
                self._made += 1
            block = Block(self._size)
            with self._change:
                self._free.append(block)

    def prefer_used(self, wanted: bool) -> None:
        """Nobody stands still, and what was taken is being sent: used memory is available sooner than new memory."""
        with self._change:
            self._used_first = USED_FIRST_TRIES if wanted else 0

    @property
    def held_bytes(self) -> int:
        """Memory that it holds."""
        return self._made * self._size

    @property
    def is_short(self) -> bool:
        """Whether the next one to ask may have to wait: time to send and give back."""
        return self._made >= self._limit and len(self._free) < 2

    def take(self) -> Span:
        """A span to write to; waits if the limit is reached. Raises Closed and Exhausted."""
        with self._change:
            if self._used_first and self.held_bytes >= USED_FIRST_BYTES and not self._is_there():
                back = self._change.wait_for(lambda: self._closed or self._is_there(), USED_FIRST_SECONDS)
                self._used_first -= not back
            while not (self._closed or self._is_there() or self._made < self._limit):
                self._wait()
            if self._closed:
                raise Closed
            if self._tails:
                return self._tails.pop()
            block = self._free.popleft() if self._free else None
            self._made += block is None
        if block is None:
            try:
                block = Block(self._size)
            except OSError:
                with self._change:
                    self._limit = self._made = self._made - 1  # the machine has no more: go on with what there is
                    if self._made < 2:
                        raise
                return self.take()
        block.spans = 1
        return Span(memoryview(block.memory), block)

    def _is_there(self) -> bool:
        return bool(self._free or self._tails)

    def _wait(self) -> None:
        began = time.monotonic()
        moved = self._change.wait(PATIENCE_SECONDS)
        self.waited_seconds += time.monotonic() - began
        if not moved:
            raise Exhausted(
                0, f"nothing of the image was sent for {PATIENCE_SECONDS:.0f} s: the store is too slow or does not answer"
            )

    def rest(self, span: Span, used: int) -> None:
        """Only the first `used` bytes of a span are needed: the rest may serve somebody else."""
        with self._change:
            if span.size - used >= TAIL_BYTES and not self._closed:
                span.block.spans += 1
                self._tails.append(Span(span.view[used:], span.block))
                span.view = span.view[:used]
                self._change.notify()

    def use(self, span: Span) -> None:
        """One more needs it."""
        with self._change:
            span.uses += 1

    def give(self, span: Span) -> None:
        """One less needs it."""
        with self._change:
            span.uses -= 1
            if span.uses:
                return
            block = span.block
            block.spans -= 1
            idle = [t for t in self._tails if t.block is block]
            if block.spans == len(idle):
                self._tails = [t for t in self._tails if t.block is not block]
                self._free.append(block)
            self._change.notify()

    def close(self) -> None:
        """Give the memory back as soon as its last user lets go of it; a caller that waits gets Closed. Idempotent."""
        with self._change:
            self._closed = True
            self._free.clear()
            self._tails.clear()
            self._change.notify_all()


def _advise(memory: mmap.mmap, advice: int) -> bool:
    try:
        memory.madvise(advice)
    except OSError:
        return False
    return True


def wanted(image_bytes: int, new_share: float | None, allowed_bytes: int, *, final: bool) -> tuple[int, int]:
    """How much memory to touch before the freeze, and the limit. `new_share` of the pages is probably not in the base.

    None: there is no base.
    """
    limit = min(FINAL_BYTES, allowed_bytes) if final else allowed_bytes
    new_bytes = image_bytes if new_share is None else int(image_bytes * min(1.0, CAUTION * new_share))
    return min(new_bytes + SLACK_BYTES, limit), limit


def image_bytes(pids: list[int]) -> int:
    """How many bytes of memory CRIU will write for these processes: private pages of each, shared ones once.

    The kernel looks at each page for that.
    """
    return sum(_told(pid, "smaps_rollup", (b"Anonymous:", b"Pss_Shmem:", b"Swap:")) for pid in pids)


def guessed_bytes(pids: list[int]) -> int:
    """About as many, from counters alone if nothing is shared; they may be wrong by some megabytes for each processor."""
    shares = {pid: _told(pid, "status", (b"RssShmem:",)) > 0 for pid in pids}
    return sum(image_bytes([p]) if shares[p] else _told(p, "status", (b"RssAnon:", b"VmSwap:")) for p in pids)


def _told(pid: int, file: str, names: tuple[bytes, ...]) -> int:
    """The sum of the kernel's values under these names in a file of /proc; 0 if the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/{file}").read_bytes().split(b"\n")  # a process may have any bytes for a name
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(names))
