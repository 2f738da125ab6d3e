"""Keeps the controller's folder private: it holds keys, values of jobs' environments, checkpoints and results."""

from __future__ import annotations

import os
import stat
from pathlib import Path

OTHERS = stat.S_IRWXG | stat.S_IRWXO
SECRET = ("state.db", "state.db-wal", "state.db-shm", "store.key", "token")


def make(folder: Path) -> None:
    """Make our own folder, for its owner alone, unless it exists."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def close(folder: Path) -> list[Path]:
    """Take every right on our own folder and on the secrets in it from others; returns the paths that were open.

    A folder of somebody else, or the root of a file system that others use, too, stays as it is: see `open_to_others`.
    """
    return [path for path in _ours(folder) if _closed(path)]


def open_to_others(folder: Path) -> bool:
    """Whether others may look into the folder, and we must not change that."""
    return folder.is_dir() and bool(stat.S_IMODE(folder.stat().st_mode) & OTHERS) and folder not in _ours(folder)


def _ours(folder: Path) -> list[Path]:
    there = [path for path in (folder, *(folder / name for name in SECRET)) if path.exists()]
    shared = folder.is_mount() or folder.stat().st_mode & stat.S_ISVTX if folder in there else True
    return [path for path in there if path.stat().st_uid == os.geteuid() and not (path == folder and shared)]


def _closed(path: Path) -> bool:
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & OTHERS:
        return False
    os.chmod(path, mode & ~OTHERS)  # noqa: PTH101 - Path.chmod would follow the same link
    return True
