"""What each part of the benchmark hands back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Part:
    """`keys` go into the JSON, `tables` (Markdown) into the documentation, each between its own markers."""

    keys: Mapping[str, float | int]
    tables: Mapping[str, str] = field(default_factory=dict)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is text, all others are figures."""
    head = ["| " + " | ".join(columns) + " |", "|---|" + "---:|" * (len(columns) - 1)]
    return "\n".join([*head, *("| " + " | ".join(row) + " |" for row in rows)])


def percent(value: float, signed: bool = False) -> str:
    """A share for people."""
    return f"{100 * value:{'+' if signed else ''}.1f}"
