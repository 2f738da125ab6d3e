"""What a batch script names of the tree around its folder: workflow programs link the folder of one task to those of others."""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = "SPOTSURFER_HOME"  # variable: the tree; a job sees its own folder of it, and what its script names
_PATH = re.compile(r"(?:\\.|[^\s'\"`<>|;&(){}$=:,*?\[\]])+")


def home_of(folder: str, script: str, root: str) -> tuple[str, tuple[str, ...]]:
    """The home of a job that works in `folder`, and the names of it that come along (none = all).

    Without a root, or outside of it, the folder itself. Else the root: the folder, and what the script names below the root,
    links with what they lead to.
    """
    root = os.path.normpath(root) if root else ""
    if not root or not _inside(folder, root) or folder == root:
        return folder, ()
    found = dict.fromkeys([folder, *_named(script, root)])
    for path in list(found):
        found |= dict.fromkeys(_led_to(Path(path), root))
    return root, tuple(_pattern(os.path.relpath(path, root)) for path in found)


def _inside(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root}/")


def _named(script: str, root: str) -> list[str]:
    words = (re.sub(r"\\(.)", r"\1", word) for word in _PATH.findall(script))
    paths = (os.path.normpath(word) for word in words if word.startswith(f"{root}/"))
    return [path for path in paths if path != root and os.path.lexists(path)]


def _led_to(path: Path, root: str) -> list[str]:
    """Where links lead to, below the root: the path itself, or those in a folder."""
    links = [path] if path.is_symlink() else [p for p in path.rglob("*") if p.is_symlink()] if path.is_dir() else []
    found: list[str] = []
    for link in links:
        target = os.path.normpath(link.parent / os.readlink(link))  # noqa: PTH115 -- one step of maybe several
        if _inside(target, root) and target != root and os.path.lexists(target):
            found += [target, *_led_to(Path(target), root)]
    return found


def _pattern(name: str) -> str:
    return "".join(f"[{c}]" if c in "[*?" else c for c in name)
