"""What processes know of the job's files beside names and content: inode numbers, and positions in folders that they list."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_agent import identity, listing
from spotsurfer_agent.engines import needs
from spotsurfer_agent.engines.port import EngineError
from spotsurfer_agent.listing import Listing
from spotsurfer_agent.manifest import KNOWN, Entry
from spotsurfer_agent.scratch import Capture

RUNS_ON = "the save failed, the job runs on: "
REMEDY = "try again when it has read the whole folder, or use machines whose disk is btrfs or ext4"


@dataclass(frozen=True, slots=True)
class Known:
    """By inode number: what processes hold (see `Entry.held`), and folders whose entries must have their positions."""

    held: dict[int, int]
    listed: frozenset[int]
    facts: dict[str, str]


def look(pids: list[int], scratch: Path) -> Known:
    """Of processes that stand still. Raises EngineError("save") for what no machine could give them again."""
    device, facts = scratch.stat().st_dev, dict[str, str]()
    held, listings = identity.held(pids, device), listing.under_way(pids, device)
    for number, how in held.items():
        if how == KNOWN and (why := identity.why_not(scratch, number)):
            what = f"it has an SQLite database open whose inode number {number} {why}: {identity.REMEDY}"
            raise EngineError("save", RUNS_ON + what)
    if lost := _lost(listings, scratch):
        raise EngineError("save", f"{RUNS_ON}{lost[0]}, and would get wrong names elsewhere: {REMEDY}")
    if KNOWN in held.values():
        facts[needs.NUMBERS] = identity.fact(scratch)
    if listings:
        facts[needs.ORDER] = listing.fact(scratch)
    counted = identity.means(scratch) == "btrfs"
    return Known(held, frozenset(x.inode for x in listings if counted), facts)


def _lost(listings: list[Listing], scratch: Path) -> list[Listing]:
    """Those that could not go on elsewhere. Into the scratch itself files are made before they are put in order."""
    top = scratch.stat().st_ino
    return [x for x in listings if not listing.keeps(scratch) or x.inode == top == identity.SUBVOLUME_INODE]


def await_listings(pids: Callable[[], Iterable[int]], scratch: Path) -> None:
    """Wait a moment for those that could not go on elsewhere to end."""
    device = scratch.stat().st_dev
    listing.await_end(lambda: _lost(listing.under_way(pids(), device), scratch))


def positions(capture: Capture, known: Known) -> dict[str, int]:
    """Of the entries of listed folders, by path. Raises EngineError("save")."""
    found: dict[str, int] = {}
    for folder in (e for e in capture.entries if e.inode in known.listed):
        there = listing.positions(capture.where(folder))
        if max(there.values(), default=0) > len(there) + identity.SKIPS_MAX:
            what = f"a process is listing {folder.path}, from which too many files were removed"
            raise EngineError("save", f"{RUNS_ON}{what}: {REMEDY}")
        found |= {f"{folder.path}/{name}": at for name, at in there.items()}
    return found


def marked(entries: list[Entry], known: Known, positions: dict[str, int]) -> list[Entry]:
    """The entries with what is known of them."""
    return [_marked(e, known.held.get(e.inode, 0), positions.get(e.path, 0)) for e in entries]


def _marked(e: Entry, held: int, position: int) -> Entry:
    return dataclasses.replace(e, held=held, position=position) if held or position else e
