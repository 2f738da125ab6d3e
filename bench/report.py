"""What benchmarks of policies share: parts that give keys and tables, a JSON file, and the page that tables go into."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Part:
    """`keys` go into the JSON, `tables` (Markdown) into the documentation, each between its own markers."""

    keys: Mapping[str, object]
    tables: Mapping[str, str] = field(default_factory=dict)


def write(parts: Mapping[str, Callable[[], Part]], names: Sequence[str], out: Path, page: Path | None) -> None:
    """Run the named parts, each written as soon as it is done. `page` None: no documentation."""
    out.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(out.read_text()) if out.exists() else {}
    for name in names:
        part = parts[name]()
        known.update(part.keys)
        for marker, text in part.tables.items():
            print(f"\n{marker}\n{text}")
            if page is not None:
                page.write_text(between(page.read_text(), marker, text))
        out.write_text(json.dumps(known, indent=2) + "\n")
    print(json.dumps(known, indent=2))


def between(page: str, marker: str, text: str) -> str:
    """The page with new text between `<!-- marker -->` and `<!-- /marker -->`; raises ValueError where they are not there."""
    found, count = re.subn(
        rf"(<!-- {marker} -->\n).*?(<!-- /{marker} -->)", lambda m: f"{m[1]}{text}\n{m[2]}", page, flags=re.DOTALL
    )
    if count != 1:
        raise ValueError(f"the page has no markers {marker}")
    return found


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, all others are figures."""
    head = ["| " + " | ".join(columns) + " |", "|---|" + "---:|" * (len(columns) - 1)]
    return "\n".join([*head, *("| " + " | ".join(row) + " |" for row in rows)])


def percent(value: float, signed: bool = False) -> str:
    """A share for people."""
    return f"{round(100 * value, 1) + 0.0:{'+' if signed else ''}.1f}"  # + 0.0: there is no "-0.0" for people
