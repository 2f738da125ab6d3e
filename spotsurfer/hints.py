"""One way to say "did you mean"."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
