"""What processes know of the job's files besides name and content: inode numbers, and positions in folders that they list."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from spotsurfer_wire.manifest import KNOWN, Entry

from spotsurfer_agent.files import identity
from spotsurfer_agent.files.identity import Listing
from spotsurfer_agent.files.scratch import Capture
from spotsurfer_agent.ports.engine import EngineError
from spotsurfer_agent.restore import compatibility

RUNS_ON = "the save failed, the job runs on: "
REMEDY = "try again when it has read the whole folder, or use machines whose disk is btrfs or ext4"


@dataclass(frozen=True, slots=True)
class KnownFiles:
    """By inode number: what processes hold (see `Entry.held`), and folders whose entries must have their positions."""

    held: dict[int, int]
    listed: frozenset[int]
    facts: dict[str, str]

    @staticmethod
    def of(pids: list[int], scratch: Path) -> KnownFiles:
        """Ask processes that stand still. Raises EngineError("save") for what no machine could give them again."""
        device, facts = scratch.stat().st_dev, dict[str, str]()
        held, listings = identity.held(pids, device), identity.under_way(pids, device)
        for number, how in held.items():
            if how == KNOWN and (why := identity.why_not(scratch, number)):
                what = f"it has an SQLite database open whose inode number {number} {why}: {identity.REMEDY}"
                raise EngineError("save", RUNS_ON + what)
        if lost := _lost(listings, scratch):
            raise EngineError("save", f"{RUNS_ON}{lost[0]}, and would get wrong names elsewhere: {REMEDY}")
        if KNOWN in held.values():
            facts[compatibility.NUMBERS] = identity.inode_fact(scratch)
        if listings:
            facts[compatibility.ORDER] = identity.listing_fact(scratch)
        counted = identity.means(scratch) == "btrfs"
        return KnownFiles(held, frozenset(x.inode for x in listings if counted), facts)

    def positions(self, capture: Capture) -> dict[str, int]:
        """The positions of entries of listed folders, by path. Raises EngineError("save")."""
        found: dict[str, int] = {}
        for folder in (e for e in capture.entries if e.inode in self.listed):
            there = identity.positions(capture.where(folder))
            if max(there.values(), default=0) > len(there) + identity.SKIPS_MAX:
                what = f"a process is listing {folder.path}, from which too many files were removed"
                raise EngineError("save", f"{RUNS_ON}{what}: {REMEDY}")
            found |= {f"{folder.path}/{name}": at for name, at in there.items()}
        return found

    def marked(self, entries: list[Entry], positions: dict[str, int]) -> list[Entry]:
        """The entries with all that is known of them."""
        known = ((e, self.held.get(e.inode, 0), positions.get(e.path, 0)) for e in entries)
        return [dataclasses.replace(e, held=held, position=at) if held or at else e for e, held, at in known]


def await_listings(pids: Callable[[], Iterable[int]], scratch: Path) -> None:
    """Wait a moment for the end of listings that could not go on elsewhere."""
    device = scratch.stat().st_dev
    identity.await_end(lambda: _lost(identity.under_way(pids(), device), scratch))


def _lost(listings: list[Listing], scratch: Path) -> list[Listing]:
    """The listings that could not go on elsewhere. In the scratch's top folder files are made before they are put in order."""
    top = scratch.stat().st_ino
    return [x for x in listings if not identity.keeps(scratch) or x.inode == top == identity.SUBVOLUME_INODE]
