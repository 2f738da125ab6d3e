"""Nextflow and Cromwell wait for one file of a task, and then read all others: these must be there first."""

from __future__ import annotations

from spotsurfer_wire.home_tree import FILE, FOLDER, GONE, LINK, HomeChange, HomeEntry

from spotsurfer.home.arrival import in_order


def test_what_was_written_last_lands_last() -> None:
    entries = [
        HomeEntry(".exitcode", FILE, mtime_ns=9),
        HomeEntry("old", GONE),
        HomeEntry("out", FOLDER, mtime_ns=8),
        HomeEntry("out/deep", FOLDER, mtime_ns=7),
        HomeEntry("out/deep/a", FILE, mtime_ns=5),
        HomeEntry("link", LINK, mtime_ns=6),
    ]
    assert [c.now.path for c in in_order(HomeChange(e) for e in entries)] == [
        "old", "out", "out/deep", "out/deep/a", "link", ".exitcode",
    ]  # fmt: skip
