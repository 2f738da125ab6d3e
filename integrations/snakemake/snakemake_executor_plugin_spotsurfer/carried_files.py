"""Which names of the working directory a rule's job takes along."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from snakemake_executor_plugin_spotsurfer.rule_request import Unfit


def below(path: str, folder: Path, what: str) -> str:
    """The path relative to `folder`. Raises Unfit for one outside of it."""
    plain = os.path.normpath(folder / path)
    if not Path(plain).is_relative_to(folder) or plain == str(folder):
        remedy = "machines see the working directory alone: copy it there, or use a storage plugin"
        raise Unfit(f"{what} {path} lies outside of {folder}: {remedy}")
    return str(PurePosixPath(plain).relative_to(folder))


def names(paths: Iterable[str], folder: Path) -> list[str]:
    """What the paths name below `folder`, as patterns that match nothing else. Raises Unfit."""
    found = dict.fromkeys(below(path, folder, "input") for path in paths)
    for name in found:
        if not (folder / name).exists():
            raise Unfit(f"input {name} is not there")
    return [_pattern(name) for name in found]


def _pattern(name: str) -> str:
    return "".join(f"[{c}]" if c in "[*?" else c for c in name)


def size(paths: Iterable[str], folder: Path) -> int:
    """Bytes of the files, those in folders too; what is not there counts nothing."""
    tops = [folder / path for path in paths]
    files = [f for top in tops for f in (top.rglob("*") if top.is_dir() else [top]) if f.is_file()]
    return sum(f.stat().st_size for f in files)
