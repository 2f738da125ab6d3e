"""Does it help to bring memory by ourselves, behind the running job or before it runs?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spotsurfer_agent.buffers import PAGE
from spotsurfer_agent.extents import Extents
from spotsurfer_agent.pager.images import Pagemap
from spotsurfer_agent.pager.layout import is_aligned

SMALL_BYTES = 16 << 20  # so little is there before anybody notices
SHARE = 0.5  # of the pages must be of the kind that can come later
MEMORY_SHARE = 0.9  # of what is free may be taken by children that share nothing any more


@dataclass(frozen=True, slots=True)
class Machine:
    """What matters of where the job is to run."""

    faults: bool  # page faults can be served at all
    free_bytes: int


def plain_because(maps: Mapping[int, Pagemap], files: Mapping[str, Extents], machine: Machine, *, at_once: bool = True) -> str:
    """Why CRIU puts all memory there; empty where that is done by ourselves, with all processors.

    `maps`: the pages of each process; `files`: what the files of pages consist of; `at_once`: the job runs meanwhile, which is
    worth a copy of what its processes share.
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
    if len(maps) > 1 and (not at_once or lazy > MEMORY_SHARE * machine.free_bytes) and _shares(maps, files):
        return "its processes share memory, and " + ("there is too little for a copy each" if at_once else "go on to do so")
    return ""


def _pages(files: Iterable[Extents]) -> int:
    """Pages that hold anything."""
    return sum(e.bytes for e in files) // PAGE


def _shares(maps: Mapping[int, Pagemap], files: Mapping[str, Extents]) -> bool:
    """Whether processes hold equal pages: those are what a fork left to both."""
    named = [set(files[m.file].chunks()) for m in maps.values() if m.file in files]
    return sum(len(x) for x in named) > len(set[int]().union(*named))
