"""What the kernel tells of a process, whatever names its job gives to files."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from spotsurfer_agent import procfs, ptrace, writewatch


@pytest.mark.parametrize(
    "read",
    [
        lambda pid: procfs.text(pid, "maps"),
        lambda pid: list(writewatch._areas(pid)),
        writewatch._refuse_devices,
        ptrace._instruction,
    ],
)
def test_a_mapped_file_may_have_a_name_that_is_no_utf_8(tmp_path: Path, read: Callable[[int], object]) -> None:
    """Such jobs had no live saves."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/Gr\xf6\xdfe.dat"))
    with path.open("w+b") as file:
        file.truncate(4096)
        with mmap.mmap(file.fileno(), 4096):
            read(os.getpid())
