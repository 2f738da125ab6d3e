"""Brings files on shared file systems back to what a checkpoint had of them, before the job goes on from it."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from spotsurfer_wire.chunks.reader import Reader
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.manifest import Manifest, Shared

from spotsurfer_agent.files import shared_ends, shared_plan, tree
from spotsurfer_agent.files.shared_plan import Deed, Found, Step


def steps(root: Path, image: Manifest, keys: Keys) -> list[Step]:
    """What is to be done with each file; nothing is touched. Raises OSError, UnsafePath."""
    return [shared_plan.step(record, _found(root, record, keys)) for record in image.shared]


def carry_out(root: Path, image: Manifest, plan: Sequence[Step], source: Reader) -> None:
    """Bring all of them back; repeating it is harmless. Raises OSError, UnsafePath, BadChunk, StoreError."""
    for s in plan:
        if s.deed is Deed.CUT:
            _cut(root, s.record)
    for deed in (Deed.FILL, Deed.MAKE):
        entries = [s.record.entry for s in plan if s.deed is deed]
        tree.refill(root, entries, image.chunks, source, anew=deed is Deed.MAKE)


def _found(root: Path, record: Shared, keys: Keys) -> Found | None:
    try:
        fd = tree.open_below(root, record.entry.path, os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return Found(0, 0, 0, regular=False)  # a link
    try:
        st = os.fstat(fd)
        if not stat.S_ISREG(st.st_mode):
            return Found(st.st_ino, st.st_size, st.st_mtime_ns, regular=False)
        ends = shared_ends.ends(fd, record.entry.size, keys) if record.head else ("", "")
        return Found(st.st_ino, st.st_size, st.st_mtime_ns, *ends)
    finally:
        os.close(fd)


def _cut(root: Path, record: Shared) -> None:
    e, fd = record.entry, tree.open_known(root, record.entry)
    try:
        os.ftruncate(fd, e.size)
        with contextlib.suppress(PermissionError):
            os.utime(fd, ns=(e.mtime_ns, e.mtime_ns))
    finally:
        os.close(fd)
