"""docs/compatibility.md: one line a program. A run replaces the lines of its programs; the words around are written by hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from programs.entry import Entry
from programs.surf import MOVES, SAVES

TABLES = {"programs": False, "refused": True}  # by marker (`<!-- name -->` … `<!-- /name -->`): whether a save is refused


@dataclass(frozen=True)
class Row:
    """One line. `good` = it is as the entry promises."""

    entry: Entry
    result: str
    good: bool

    @property
    def line(self) -> str:
        """As Markdown."""
        e = self.entry
        done = "a save asked for" if e.refused else f"{SAVES} saves, {MOVES} moves"
        cells = (e.title, e.version or "-", e.what, done, self.result)
        return "| " + " | ".join(c.replace("|", "\\|").replace("\n", " ") for c in cells) + " |"


def write(path: Path, rows: list[Row], known: list[Entry]) -> None:
    """Put these rows in; lines of other known programs stay, lines of programs that are no more go."""
    page = path.read_text()
    for marker, refused in TABLES.items():
        head, old, tail = _parts(page, marker)
        kept = _by_title(old) | {r.entry.title: r.line for r in rows}
        found = [kept[e.title] for e in known if e.refused is refused and e.title in kept]
        page = head + "\n".join([*old.splitlines()[:2], *sorted(found, key=str.lower)]) + "\n" + tail
    path.write_text(page)


def lines(page: str) -> dict[str, str]:
    """The lines of all tables by the titles of their programs."""
    return {title: line for marker in TABLES for title, line in _by_title(_parts(page, marker)[1]).items()}


def _by_title(table: str) -> dict[str, str]:
    return {x[2:].split(" | ")[0].replace("\\|", "|"): x for x in table.splitlines()[2:]}


def _parts(page: str, marker: str) -> tuple[str, str, str]:
    """What stands before the table of a marker, the table, and the rest; raises ValueError where it is not there."""
    head, begin, rest = page.partition(f"<!-- {marker} -->\n")
    table, end, tail = rest.partition(f"<!-- /{marker} -->")
    if not end:
        raise ValueError(f"the page has no <!-- {marker} --> and <!-- /{marker} -->")
    return head + begin, table, end + tail
