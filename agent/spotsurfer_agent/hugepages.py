"""Transparent huge pages for a machine whose jobs move tens of gigabytes between GPU and memory."""

from __future__ import annotations

import contextlib
from pathlib import Path

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def everywhere() -> bool:
    """Let the kernel use them without being asked; whether it does now.

    On an H200 the way out of the GPU is 1.4 times as fast with them and the way back 1.2 times. They stay: the machine is the
    job's alone. Where the setting can't be written (a box, a container) all works as before, slower.
    """
    with contextlib.suppress(OSError):
        if "[always]" not in SETTING.read_text():
            SETTING.write_text("always")
        return True
    return False
