"""Transparent huge pages while tens of gigabytes move between a GPU and a job's memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
COMPACT = Path("/proc/sys/vm/compact_memory")
ALWAYS = "always"
COMPACTS = False  # before GPU memory comes out: not shown to be worth its time yet; `bench.gpu --compact` tries it


@contextlib.contextmanager
def everywhere() -> Iterator[None]:
    """Let the kernel use them without being asked, for a while; then the machine is as it was.

    On an H200 the way out of the GPU is 1.4 times as fast with them and the way back 1.2 times. Where the setting can't be
    written (a container) all works as before, slower.
    """
    before = _now()
    if before not in ("", ALWAYS):
        _set(ALWAYS)
    try:
        yield
    finally:
        if before not in ("", ALWAYS):
            _set(before)


def make_room() -> None:
    """Where that is wanted, have the kernel move what is in the way of huge pages. Takes seconds; the job runs meanwhile."""
    if COMPACTS:
        with contextlib.suppress(OSError):
            COMPACT.write_text("1")


def _now() -> str:
    """The setting; empty where there is none."""
    with contextlib.suppress(OSError, IndexError):
        return SETTING.read_text().split("[")[1].split("]")[0]
    return ""


def _set(value: str) -> None:
    with contextlib.suppress(OSError):
        SETTING.write_text(value)
