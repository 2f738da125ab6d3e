"""Files on shared file systems that a job had open for writing: what is kept of each, and what a restore does with it. Pure.

Such a file stays where it is, so it may be ahead of the checkpoint that a job goes on from. A file that only grows is cut to
its length. One that is rewritten in place gets its content back, if that was kept. Everything else that changed is a refusal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from spotsurfer_wire.manifest import GROWS, KEPT, UNKEPT, Shared

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True)
class Writing:
    """A file that processes have open for writing. `path` begins with the name of the mount."""

    path: str
    inode: int
    size: int
    at_end: bool  # every descriptor appends, or stands at the end; and no process has mapped it for writing
    mapped: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """The same path at a restore. `head` and `tail` are of the recorded size; "" = the file is shorter."""

    inode: int
    size: int
    mtime_ns: int
    head: str = ""
    tail: str = ""
    regular: bool = True


class Deed(StrEnum):
    """What is done with a file."""

    LEAVE = "leave"  # it is as it was
    CUT = "cut"  # to its length
    FILL = "fill"  # its content is written into it
    MAKE = "make"  # it is gone, or another file has its name: it is made anew from the kept content
    REFUSE = "refuse"  # it can't be brought back


@dataclass(frozen=True, slots=True)
class Step:
    """One deed; `why` is for people."""

    record: Shared
    deed: Deed
    why: str = ""


def ways(found: Iterable[Writing], went_back: Mapping[str, bool], most_bytes: int) -> dict[str, str]:
    """What is kept of each file, by path. `went_back`: earlier saves saw that what they had was changed.

    Small files come first: together at most `most_bytes` are kept.
    """
    chosen: dict[str, str] = {}
    left = most_bytes
    for w in sorted(found, key=lambda w: (w.size, w.path)):
        if w.at_end and not w.mapped and not went_back.get(w.path, False):
            chosen[w.path] = GROWS
        elif w.size <= left:
            chosen[w.path] = KEPT
            left -= w.size
        else:
            chosen[w.path] = UNKEPT
    return chosen


def warning(records: Iterable[Shared], most_bytes: int) -> str:
    """What a save could not keep; empty = nothing."""
    lost = [x.entry for x in records if x.way == UNKEPT]
    if not lost:
        return ""
    names = ", ".join(f"{e.path} ({e.size // MEBIBYTE} MiB)" for e in lost[:3]) + (" and more" if len(lost) > 3 else "")
    return (
        f"not kept, because what is rewritten on shared file systems is more than {most_bytes // MEBIBYTE} MiB: {names}; the "
        "job can go on from the checkpoint only while they are as they are now (`[checkpoint] shared_bytes`)"
    )


def step(record: Shared, now: Found | None) -> Step:
    """What a restore does with a file, from what was recorded and what is there (None = nothing)."""
    then, kept = record.entry, record.way == KEPT
    where = f"{then.path} on a shared file system"
    if now is None:
        return Step(record, Deed.MAKE if kept else Deed.REFUSE, f"{where} had {then.size} bytes and is gone")
    if not now.regular:
        return Step(record, Deed.REFUSE, f"{where} was a file of {then.size} bytes and is none any more")
    if now.inode != then.inode:
        why = f"{where} was file number {then.inode} and is another one, number {now.inode}"
        return Step(record, Deed.MAKE if kept else Deed.REFUSE, why)
    same = (now.size, now.mtime_ns) == (then.size, then.mtime_ns)
    if same and record.way != GROWS:
        return Step(record, Deed.LEAVE)
    if kept:
        return Step(record, Deed.FILL, f"{where} was written to since")
    if record.way == UNKEPT:
        return Step(record, Deed.REFUSE, f"{where} was rewritten, and its {then.size} bytes were too many to keep")
    return _grown(record, now, where)


def _grown(record: Shared, now: Found, where: str) -> Step:
    then = record.entry
    if now.size < then.size:
        return Step(record, Deed.REFUSE, f"{where} had {then.size} bytes and has {now.size}")
    if (now.head, now.tail) != (record.head, record.tail):
        why = f"{where} was only appended to, up to {then.size} bytes, and now begins or goes on otherwise"
        return Step(record, Deed.REFUSE, why)
    if now.size == then.size:
        return Step(record, Deed.LEAVE)
    return Step(record, Deed.CUT, f"{where} had {then.size} bytes and has {now.size}")


def of_copy(steps: Iterable[Step]) -> list[Step]:
    """The steps of a copy of a job: it takes nothing from the other one, whose files these are."""
    theirs = "the job that this is a copy of wrote it since; let each have a folder of its own"
    return [s if s.deed in (Deed.LEAVE, Deed.REFUSE) else Step(s.record, Deed.REFUSE, f"{s.why}: {theirs}") for s in steps]


def refusal(steps: Iterable[Step]) -> str:
    """Why the job can't go on; empty = it can."""
    lost = [s.why for s in steps if s.deed is Deed.REFUSE]
    more = f" (and {len(lost) - 1} more such files)" if len(lost) > 1 else ""
    return f"this image can't be continued: {lost[0]}{more}" if lost else ""


SAID = {Deed.CUT: "cut to their length", Deed.FILL: "given their content again", Deed.MAKE: "made anew"}


def told(steps: Sequence[Step]) -> str:
    """What was done, for people; empty = nothing."""
    by_deed: dict[Deed, list[str]] = {}
    for s in steps:
        by_deed.setdefault(s.deed, []).append(s.record.entry.path)
    parts = [
        f"{len(paths)} {words} ({', '.join(paths[:3])}{' …' if len(paths) > 3 else ''})"
        for deed, words in SAID.items()
        if (paths := by_deed.get(deed))
    ]
    fixed = [s.record.entry.path for s in steps if s.deed is Deed.LEAVE and s.record.way == UNKEPT]
    if fixed:
        parts.append(f"{len(fixed)} that can't be brought back once they are written to ({', '.join(fixed[:3])})")
    return f"files on shared file systems were brought back to the checkpoint: {'; '.join(parts)}" if parts else ""
