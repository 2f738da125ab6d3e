"""The controller's folder is its owner's alone: in it are keys, the values of jobs' environments, checkpoints and results."""

from __future__ import annotations

import os
import stat
from pathlib import Path

OTHERS = stat.S_IRWXG | stat.S_IRWXO
SECRET = ("state.db", "state.db-wal", "state.db-shm", "store.key", "token")


def close(folder: Path) -> list[Path]:
    """Take every right on the folder and on the secrets in it from others; what was open until now.

    Raises OSError where it is not ours to close.
    """
    return [path for path in (folder, *(folder / name for name in SECRET)) if path.exists() and _closed(path)]


def _closed(path: Path) -> bool:
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & OTHERS:
        return False
    os.chmod(path, mode & ~OTHERS)  # noqa: PTH101 - Path.chmod would follow the same link
    return True
