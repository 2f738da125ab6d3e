"""Columns as Slurm's programs print them: widths, sides, cut texts. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
LONG_WIDTH = 20  # of a column of squeue -O and sinfo -O that names none


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """One column: its head, the text of a row. `width`: 0 = as wide as the text. `suffix` follows each text."""

    head: str
    text: Callable[[T], str]
    width: int = 0
    right: bool = False
    suffix: str = ""

    def show(self, text: str) -> str:
        """The text in the column, cut if it is too long."""
        if not self.width:
            return text + self.suffix
        cut = text[: self.width]
        return (cut.rjust(self.width) if self.right else cut.ljust(self.width)) + self.suffix


Known = Mapping[str, tuple[str, Callable[[T], str]]]
LETTER = re.compile(r"%(\.?)(\d*)([A-Za-z])([^%]*)")


def short_format(text: str, known: Known[T]) -> tuple[str, list[Column[T]]]:
    """Columns of a format like "%.18i %j": what stands before the first, and they. Raises KeyError with an unknown letter."""
    columns = []
    for dot, width, letter, suffix in LETTER.findall(text):
        head, show = known[letter]
        columns.append(Column(head, show, int(width or 0), bool(dot), suffix))
    return text.partition("%")[0], columns


def long_format(text: str, known: Known[T]) -> list[Column[T]]:
    """Columns of a format like "JobID:.8,State". Raises KeyError with an unknown name."""
    columns = []
    for part in filter(None, text.split(",")):
        name, _, size = part.partition(":")
        found = re.fullmatch(r"(\.?)(\d*)(.*)", size)
        assert found is not None
        dot, width, suffix = found.groups()
        try:
            head, show = known[name.lower()]
        except KeyError:
            raise KeyError(part) from None
        columns.append(Column(head, show, int(width or LONG_WIDTH), bool(dot), suffix))
    return columns


def lines(columns: Sequence[Column[T]], rows: Iterable[T], prefix: str = "", heads: bool = True) -> Iterable[str]:
    """The head, if wanted, and a line for each row."""
    if heads:
        yield prefix + "".join(c.show(c.head) for c in columns)
    for row in rows:
        yield prefix + "".join(c.show(c.text(row)) for c in columns)
