"""Prints everything, and holds the plain words for the controller's terms; nothing else prints.

JSON or text goes to stdout, progress and errors to stderr.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from spotsurfer.common.plain_words import PHASES, STATES
from spotsurfer.model.money import usd
from spotsurfer.model.queueing.dependencies import NEVER

if TYPE_CHECKING:
    from rich.console import Console


PLAIN_WIDTH = 1 << 20  # a pipe gets nothing cut or wrapped
COLUMN_MIN = 24  # characters that a column of sentences needs; with less, they go below their rows
LINES_MAX = 8  # of one value in `pairs`
RIGHT = frozenset({"#", "cpu", "spent", "list", "saved", "unsaved", "time", "frozen", "size", "new", "age", "usd", "machines"})


class _Manner:
    """How the user asked this call to answer."""

    quiet = False
    json = False


def hush(wanted: bool) -> None:
    """Switch progress messages and confirmations off or on."""
    _Manner.quiet = wanted


def is_quiet() -> bool:
    """Whether only errors and requested output are printed."""
    return _Manner.quiet


def answer_in_json(wanted: bool) -> bool:
    """Choose between JSON on stdout, where nothing else is printed then, and plain text. Returns the choice."""
    _Manner.json = wanted
    return wanted


def is_json() -> bool:
    """Whether JSON is on stdout, and nothing else."""
    return _Manner.json


def put_json(value: object, compact: bool = False) -> bool:
    """One JSON value on stdout, if the user asked for that; returns whether. `compact`: on one line."""
    if is_json():
        print(json.dumps(value, indent=None if compact else 2), flush=True)
    return is_json()


def put(text: str = "") -> None:
    """A line on stdout."""
    if not is_json():
        print(clean(text), flush=True)


def confirm(text: str) -> None:
    """A sentence on stdout, which the user may not want to see."""
    if not is_quiet():
        put(text)


def say(answer: object, text: str) -> None:
    """Confirm an action: the answer as JSON, or a sentence."""
    put_json(answer)
    confirm(text)


def tell(text: str) -> None:
    """A line of progress on stderr."""
    if not is_quiet():
        complain(text)


def complain(text: str) -> None:
    """A line of trouble on stderr."""
    print(clean(text), file=sys.stderr, flush=True)


def width() -> int:
    """Characters in a line of stdout."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else PLAIN_WIDTH


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on stdout; into a pipe it is plain columns.

    A narrow terminal breaks no word and no header. If the last column holds sentences, it is wrapped or goes below its row; if
    that is not enough, the first column goes above it.
    """
    if is_json():
        return
    columns = [clean(name) for name in columns]
    cells = [[clean(cell).replace("\n", " ") for cell in row] for row in rows]
    room = width()
    prose = max((len(row[-1]) for row in cells), default=0) > COLUMN_MIN
    fixed, short = (columns[:-1], [row[:-1] for row in cells]) if prose else (columns, cells)
    if _needs(columns, cells) <= room:
        _draw(columns, cells)
    elif prose and (left := room - _needs(fixed, short) - 2) >= COLUMN_MIN:
        wrapped = [_wrapped(row[-1], left) for row in cells]
        shown = [[*row, lines[0]] for row, lines in zip(short, wrapped, strict=True)]
        _draw(columns, shown, [lines[1:] for lines in wrapped], room - left)
    else:
        said = [f"{columns[-1]}: {row[-1]}" if prose and row[-1] not in ("", "-") else "" for row in cells]
        below = [_wrapped(text, room - 4) if text else [] for text in said]
        if _needs(fixed, short) <= room:
            _draw(fixed, short, below, 4)
        else:
            _stacked(fixed, short, below)


def _needs(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Characters that a table takes without wrapping."""
    return sum(max(len(name), *(len(row[i]) for row in rows), 0) + 2 for i, name in enumerate(columns)) - 2


def _wrapped(text: str, room: int) -> list[str]:
    """Lines of a text, broken between words."""
    return textwrap.wrap(text, max(room, 1), break_long_words=False, break_on_hyphens=False) or [""]


def _stacked(columns: Sequence[str], rows: Sequence[Sequence[str]], below: Sequence[Sequence[str]]) -> None:
    """The first cell of each row on a line of its own, the others below it."""
    (head,) = _drawn(columns[:1], [])
    others, *lines = _drawn(columns[1:], [row[1:] for row in rows])
    print(f"{head}\n  {others}")
    for row, line, more in zip(rows, lines, below, strict=True):
        print("\n".join([row[0], f"  {line}", *(f"    {text}" for text in more)]))
    sys.stdout.flush()


def _draw(columns: Sequence[str], rows: Sequence[Sequence[str]], below: Sequence[Sequence[str]] = (), indent: int = 0) -> None:
    """A table, with lines below its rows."""
    head, *lines = _drawn(columns, rows)
    print(head)
    for line, more in zip(lines, below or [()] * len(lines), strict=True):
        print("\n".join([line, *(" " * indent + text for text in more)]))
    sys.stdout.flush()


def _drawn(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table that has all the room it needs: its header, and one a row."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in columns:
        grid.add_column(name.upper(), justify="right" if name in RIGHT else "left", no_wrap=True)
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    screen = Console(file=sys.stdout, markup=False, highlight=False, width=max(10 * _needs(columns, rows), 1))
    with screen.capture() as drawn:
        screen.print(grid)
    return [line.rstrip() for line in drawn.get().splitlines()]


def console() -> Console:
    """A rich console on stderr that neither guesses at markup nor colours what it prints."""
    from rich.console import Console

    terminal = sys.stderr.isatty()
    return Console(file=sys.stderr, markup=False, highlight=False, soft_wrap=False, width=None if terminal else 240)


def clean(text: str) -> str:
    """Text from outside (job names, messages) without characters that control a terminal."""
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
    """Name and value, one pair a line, without empty values. Longer values stay in their column."""
    shown = [(name, str(value)) for name, value in rows if value not in (None, "", [], {})]
    begin = max((len(name) for name, _ in shown), default=0) + 2
    for name, value in shown:
        lines = [part for line in clean(value).split("\n") for part in _folded(line, width() - begin)]
        if len(lines) > LINES_MAX:
            lines = [*lines[: LINES_MAX - 1], f"… ({len(lines) - LINES_MAX + 1} more lines: --json has all of it)"]
        put(f"{name:<{begin}}{lines[0]}")
        for line in lines[1:]:
            put(f"{'':<{begin}}{line}".rstrip())


def paragraph(text: str, indent: int = 4) -> None:
    """One line on stdout; a narrow terminal breaks it between words, and indents what follows if there is room for that."""
    rest = " " * (indent if indent < width() // 2 else 4)
    for line in textwrap.wrap(clean(text), width(), subsequent_indent=rest, break_long_words=False, break_on_hyphens=False):
        put(line)


def _folded(line: str, room: int) -> list[str]:
    """The line itself if it fits, else broken between words; its indentation stays."""
    if len(line) <= room:
        return [line]
    kept = line[: len(line) - len(line.lstrip())]
    wide = max(room, COLUMN_MIN)
    return textwrap.wrap(line, wide, subsequent_indent=kept, break_long_words=False, break_on_hyphens=False) or [""]


# ---- Plain words: the meaning of the controller's terms for readers of `list` and `show`. Programs get the terms.

# Columns of `list` with names that do not explain their content.
COLUMNS = {
    "cpu": "processor time that the job used, on all its machines",
    "saved by": "how its checkpoints are made; with none there are none, and `why` says the reason",
    "unsaved": "work since the newest checkpoint, which it would do again if its machine were lost now",
    "spent": "US dollars",
    "age": "time since it was submitted",
}


def glossary() -> str:
    """The phases and columns with what they mean, for a help text."""
    titled = {"States": PHASES, "Columns": {name.upper(): meaning for name, meaning in COLUMNS.items()}}
    blocks = (
        ["\b", f"{title}:", *(f"  {name:<11} {_also(name)}{meaning}" for name, meaning in words.items())]
        for title, words in titled.items()
    )
    return "\n\n".join("\n".join(block) for block in blocks)


def _also(phase: str) -> str:
    """The plainer word of a phase, to be put before its meaning."""
    return f'"{STATES[phase]}": ' if phase in STATES else ""


def state(job: dict[str, Any]) -> str:
    """A job's state in few words, with the exit code of a command that failed."""
    words = STATES.get(job["phase"], str(job["phase"]))
    words += ", never begins" if str(job["note"]).startswith(NEVER) else ""
    return words + (f", exit code {job['exit_code']}" if job["exit_code"] else "")


def phase_of(words: str) -> str:
    """The phase that a user means by its name or by what `list` shows."""
    return next((phase for phase, said in STATES.items() if words.lower() == said), words)
