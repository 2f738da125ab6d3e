"""An unpacked Debian with a few packages, for boxes or a test to have as their root: made once, kept beside the runtime."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

from support.tree import ROOT

FOLDER = ROOT / "build" / "roots"
SUITE = "bookworm"
FOR_BOXES = "wget,ca-certificates"  # user-data fetches the agent with the one and checks who it talks to with the other


def debian_tree(name: str = SUITE, packages: str = FOR_BOXES) -> Path:
    """The tree of this name; fails where debootstrap is missing. Takes a minute or two the first time."""
    assert shutil.which("debootstrap"), "debootstrap is missing: apt-get install debootstrap"
    tree = FOLDER / name
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not tree.is_dir():
            fresh = FOLDER / f".{name}.new"
            shutil.rmtree(fresh, ignore_errors=True)
            mirror = [m] if (m := os.environ.get("SPOTSURFER_DEBIAN_MIRROR")) else []
            words = ["debootstrap", "--variant=minbase", f"--include={packages}", SUITE, str(fresh), *mirror]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
            fresh.rename(tree)
    return tree
