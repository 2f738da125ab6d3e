"""What the demonstrations share: that one failed, the wait for something, the name of the GPU."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

LIMIT_SECONDS = 300.0


class Failed(Exception):
    """The demonstration did not show what it should; a sentence."""


def until(what: Callable[[], object], told: str, look_seconds: float, lost: Callable[[], str] = str) -> None:
    """Wait for it. `lost`: why it can't come any more, "" = it may. Raises Failed."""
    end = time.monotonic() + LIMIT_SECONDS
    while not what():
        if why := lost() or (time.monotonic() > end and f"within {LIMIT_SECONDS:.0f} s"):
            raise Failed(f"{told} did not happen: {why}")
        time.sleep(look_seconds)


def device(standin: bool) -> str:
    """The GPU with its driver, for people."""
    if standin:
        return "a stand-in, no GPU"
    words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
