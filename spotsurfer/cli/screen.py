"""Everything that is printed: JSON or text on stdout, progress and errors on stderr; nothing else prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from spotsurfer.model.money import usd

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 240  # into a pipe nothing is cut
RIGHT = frozenset({"#", "cpu", "spent", "list", "saved", "at risk", "time", "frozen", "size", "age", "usd"})


def put_json(value: object, compact: bool = False) -> None:
    """One JSON value on stdout; `compact`: on one line."""
    print(json.dumps(value, indent=None if compact else 2), flush=True)


def put(text: str = "") -> None:
    """A line on stdout."""
    print(clean(text), flush=True)


def tell(text: str) -> None:
    """A line of progress or trouble on stderr."""
    print(clean(text), file=sys.stderr, flush=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on stdout that fits the terminal; into a pipe it is plain columns."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        grid.add_column(name.upper(), justify="right" if name in RIGHT else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(clean(cell)) for cell in row))
    screen = console()
    with screen.capture() as drawn:
        screen.print(grid)
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()), flush=True)


def console(stderr: bool = False) -> Console:
    """A rich console that neither guesses at markup nor colours what it prints."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, markup=False, highlight=False, soft_wrap=False, width=None if stream.isatty() else PLAIN_WIDTH)


def clean(text: str) -> str:
    """Text of strangers (job names, messages) without characters that steer a terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def when(text: str | None, day: bool = True) -> str:
    """A time of the wire as local time with its zone."""
    if text is None:
        return "-"
    local = datetime.fromisoformat(text).astimezone()
    return local.strftime("%Y-%m-%d %H:%M:%S %Z" if day else "%H:%M:%S")


def money(micros: int | None) -> str:
    """An amount in dollars, four decimals."""
    return "-" if micros is None else usd(micros)


def pairs(rows: Iterable[tuple[str, Any]]) -> None:
    """Name and value, one a line; empty values are left out."""
    shown = [(name, str(value)) for name, value in rows if value not in (None, "", [], {})]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        put(f"{name:<{width}}  {value}")
