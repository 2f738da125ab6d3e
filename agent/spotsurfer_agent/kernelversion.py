"""Which Linux this is, as mainline counts. Standard library only: shims use it."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from pathlib import Path

SIGNATURE = Path("/proc/version_signature")  # "Ubuntu 6.8.0-51.52-generic 6.8.12"


@functools.cache
def version() -> tuple[int, ...]:
    """Ubuntu's own release says nothing of the one that it was made from: `/proc/version_signature` does."""
    release = os.uname().release
    with contextlib.suppress(OSError):
        release = SIGNATURE.read_text().split()[-1]
    return tuple(int(x) for x in re.findall(r"\d+", release)[:3])
