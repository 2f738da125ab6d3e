"""Help for errors in user input: "did you mean", and the line of a TOML file that holds a key."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant, or None."""
    near = difflib.get_close_matches(word, sorted(map(str, known)), n=1, cutoff=0.6)
    return near[0] if near else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence that names the nearest known word, or all of them."""
    words = sorted(map(str, known))
    by_last_part = {w.rpartition(".")[2]: w for w in words} | {w: w for w in words}
    near = difflib.get_close_matches(word, by_last_part, n=1, cutoff=0.6)
    return f"Did you mean {by_last_part[near[0]]!r}?" if near else f"Known: {', '.join(words)}."


# ---- TOML lines: finds the line of a key, which the parser of the standard library does not report.
# The scanner is good enough for messages: it follows [tables], dotted and quoted keys, skips multi-line strings, and falls
# back to the nearest enclosing key (an inline table, a list).

_TABLE = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|[\w-]+)(?:\s*\.\s*(?:"[^"]*"|'[^']*'|[\w-]+))*)\s*=(.*)$""")
_PART = re.compile(r""""([^"]*)"|'([^']*)'|([\w-]+)""")


def line_of(text: str, path: Sequence[str]) -> int | None:
    """The line (from 1) of the key `path` or of its nearest parent; None if both are absent.

    A number in `path` means that of a [[table]], from 0.
    """
    best: tuple[int, int] | None = None
    for number, key in _keys(text, indexed=any(part.isdigit() for part in path)):
        shared = _shared(key, path)
        if shared and (shared == len(key) or shared == len(path)) and (best is None or shared > best[0]):
            best = (shared, number)
    return best[1] if best else None


def _shared(key: Sequence[str], path: Sequence[str]) -> int:
    count = 0
    for a, b in zip(key, path, strict=False):
        if a != b:
            break
        count += 1
    return count


def _keys(text: str, *, indexed: bool) -> Iterator[tuple[int, tuple[str, ...]]]:
    table: tuple[str, ...] = ()
    seen = Counter[tuple[str, ...]]()  # tables of each [[name]] so far
    closing = ""
    for number, line in enumerate(text.splitlines(), 1):
        if closing:
            closing = "" if closing in line else closing
            continue
        if header := _TABLE.match(line):
            table = _parts(header.group(1))
            if indexed and line.lstrip().startswith("[["):
                seen[table] += 1
                table = (*table, str(seen[table] - 1))
            yield number, table
        elif pair := _KEY.match(line):
            yield number, (*table, *_parts(pair.group(1)))
            closing = next((q for q in ('"""', "'''") if pair.group(2).count(q) == 1), "")


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(a or b or c for a, b, c in _PART.findall(dotted))
