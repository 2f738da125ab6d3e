"""Where tests find the agent's runtime."""

import os
from pathlib import Path

from support.tree import ROOT

VARIABLE = "SPOTSURFER_TEST_RUNTIME"


def unpacked_runtime() -> Path:
    """The folder that `make setup` left, or the one that the variable names; fails where there is none."""
    folder = Path(os.environ.get(VARIABLE) or ROOT / "build" / "runtime" / "current")
    if not (folder / "RUNTIME.json").exists():
        raise AssertionError(f"no runtime in {folder}: call make setup, or set {VARIABLE}")
    return folder.resolve()
