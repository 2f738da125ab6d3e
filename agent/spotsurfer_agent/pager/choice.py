"""Does it help to bring memory by ourselves, behind the running job or before it runs?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from spotsurfer_agent.buffers import PAGE
from spotsurfer_agent.extents import Extents
from spotsurfer_agent.pager.images import Pagemap
from spotsurfer_agent.pager.layout import is_aligned

SMALL_BYTES = 16 << 20  # so little is there before anybody notices
SHARE = 0.5  # of the pages must be of the kind that can come later
MEMORY_SHARE = 0.9  # of what is free may be taken by processes that share nothing any more
CHUNK_BITS = 32  # no chunk is that long
HAND_THREADS = 4  # of one process; more of them wait for each other
HANDS_MAX = 8
HANDS_BYTES_MIN = 4 << 30  # less is there soon enough
COPIES_SHARE = 1 / 16  # of a job's memory may come to be there twice, where the only gain is time


@dataclass(frozen=True, slots=True)
class Machine:
    """What matters of where the job is to run."""

    faults: bool  # page faults can be served at all
    free_bytes: int


def plain_because(maps: Mapping[int, Pagemap], files: Mapping[str, Extents], machine: Machine, *, at_once: bool = True) -> str:
    """Why CRIU puts all memory there; empty where that is done by ourselves, with all processors.

    `maps`: the pages of each process; `files`: what the files of pages consist of; `at_once`: the job runs meanwhile, which is
    worth a copy of all that its processes share. Where it waits, little of it may be copied, but not nothing: programs that
    were started alike hold equal pages and share none, and CRIU brings all memory by one processor.
    """
    lazy = sum(m.lazy_pages for m in maps.values()) * PAGE
    everything = _pages(files.values()) * PAGE
    if not machine.faults:
        return "this kernel does not let us serve page faults"
    if lazy < SMALL_BYTES:
        return "there is little memory"
    if lazy < SHARE * everything:
        return "most memory is shared or belongs to files"
    if not all(is_aligned(files[m.file]) for m in maps.values() if m.file in files):
        return "pages of the image are cut in pieces"
    copies = _copied_bytes([files[m.file] for m in maps.values() if m.file in files])
    if copies and lazy > MEMORY_SHARE * machine.free_bytes:
        return "its processes share memory, and there is too little for a copy each"
    if copies > COPIES_SHARE * lazy and not at_once:
        return "its processes share memory, and go on to do so"
    return ""


def hands(processors: int, image_bytes: int) -> int:
    """How many further processes write memory into a job that stands still (`bench.gpu.bring` measures what they are worth)."""
    few = processors < 2 * HAND_THREADS or image_bytes < HANDS_BYTES_MIN
    return 0 if few else min(processors // HAND_THREADS, HANDS_MAX)


def _pages(files: Iterable[Extents]) -> int:
    """Pages that hold anything."""
    return sum(e.bytes for e in files) // PAGE


def _copied_bytes(held: Sequence[Extents]) -> int:
    """What processes that share nothing any more have more than once: equal pages are what a fork left to both."""
    return sum(_distinct(e) for e in held) - _distinct(*held) if len(held) > 1 else 0


def _distinct(*held: Extents) -> int:
    """Bytes of chunks that these refer to, each counted once."""
    rows = np.concatenate([e.table[:, [2, 3, 1]] for e in held]).astype(np.int64)
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    begins = (rows[:, 0] << CHUNK_BITS) + rows[:, 1]
    ends = begins + rows[:, 2]
    before = np.concatenate(([0], np.maximum.accumulate(ends)[:-1]))
    return int(np.maximum(ends - np.maximum(begins, before), 0).sum())
