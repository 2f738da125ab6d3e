"""The files of the project, without what was built or installed beside them."""

import os
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_NOT_OURS = {"build", "dist", "node_modules", "__pycache__"}
HIDDEN = {".ci", ".github", ".gitignore", ".pre-commit-config.yaml"}


@cache
def own_files() -> tuple[Path, ...]:
    """Every file that belongs to the project, sorted; of hidden ones those in HIDDEN."""
    out: list[Path] = []
    for at, folders, names in os.walk(ROOT):
        folders[:] = [f for f in folders if f not in _NOT_OURS and (not f.startswith(".") or f in HIDDEN)]
        out += [Path(at) / n for n in names if not n.startswith(".") or n in HIDDEN]
    return tuple(sorted(out))
