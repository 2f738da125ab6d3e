"""The list of planted faults, and how one is put into a source file."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).with_name("faults.toml")
LEVELS = ("quick", "default")


class Unfit(Exception):
    """A row of the list does not fit the code or the tests any more; the message says which row, and what to change."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the list. Paths are relative to the root of the project."""

    name: str
    breaks: str  # the safety property that is gone, as one sentence
    file: str
    old: str  # is in the file exactly once
    new: str
    near: tuple[str, ...]  # files of tests, or single tests, that should notice; they run first
    level: str = "quick"  # the quickest level that notices

    def plant(self, root: Path) -> None:
        """Put the fault into the tree below `root`. Raises Unfit."""
        path = root / self.file
        text, before = (path.read_text(), path.stat().st_mtime) if path.is_file() else ("", 0.0)
        path.write_text(self.planted(text))
        os.utime(path, (before + 1, before + 1))  # else Python may run what it compiled before: it compares seconds and sizes

    def planted(self, text: str) -> str:
        """The text of the file with the fault in it. Raises Unfit."""
        if (count := text.count(self.old)) != 1:
            raise Unfit(f"{self.name}: its old text is in {self.file} {count} times and must be there once: change the row")
        return text.replace(self.old, self.new)


def load(path: Path = LIST) -> list[Fault]:
    """All faults of a list. Raises Unfit."""
    try:
        rows = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as e:
        raise Unfit(f"{path}: {e}") from e
    faults = []
    for name, row in rows.items():
        try:
            fault = Fault(name=name, near=tuple(row.pop("near")), **row)
        except (KeyError, TypeError) as e:
            raise Unfit(f"{name}: a key is missing or unknown in {path.name}: {e}") from e
        if fault.level not in LEVELS:
            raise Unfit(f"{name}: level {fault.level!r} is not one of {', '.join(LEVELS)}")
        faults.append(fault)
    return faults


def check(faults: list[Fault], root: Path) -> None:
    """Raises Unfit for the first fault that can't be planted in the tree below `root`, or names tests that are not there."""
    for fault in faults:
        path = root / fault.file
        fault.planted(path.read_text() if path.is_file() else "")
        for near in fault.near:
            file, _, test = near.partition("::")
            there = (root / file).is_file() and (not test or f"def {test.partition('[')[0]}(" in (root / file).read_text())
            if not there:
                raise Unfit(f"{fault.name}: {near} does not exist: change `near` in the row")
