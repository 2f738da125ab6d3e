"""Design pages are plain English: short sentences, and none of the turns that made earlier ones hard to read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.tree import ROOT

WORDS_MAX, WORDS_MEAN_MAX = 35, 17
PAGES = sorted([ROOT / "ARCHITECTURE.md", *(ROOT / "docs" / "design").glob("*.md")])
HARD = re.compile(r"\b(?:is|are|was|be) had\b|\bWhose\b|\bwhoever\b")


def sentences(text: str) -> Iterator[list[str]]:
    """The words of each sentence; drawings, tables and headings are left out, and each item of a list is a paragraph."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = "\n".join(line for line in text.splitlines() if not line.startswith(("#", "|")))
    for paragraph in re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", text):
        plain = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", paragraph))
        for sentence in re.split(r"(?<=[.!?:;])\s+", " ".join(plain.split())):
            if words := re.findall(r"[\w'/-]+", sentence):
                yield words


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_sentences_are_short(page: Path) -> None:
    found = list(sentences(page.read_text()))
    assert [" ".join(words) for words in found if len(words) > WORDS_MAX] == []
    assert sum(map(len, found)) / len(found) <= WORDS_MEAN_MAX


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_no_hard_turns(page: Path) -> None:
    assert HARD.findall(page.read_text()) == []


def test_the_overview_is_short() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_bytes()) <= 12_000


def test_a_long_sentence_is_found() -> None:
    long = " ".join(["word"] * (WORDS_MAX + 1)) + "."
    assert max(map(len, sentences(f"Short one. {long}\n\n- item"))) == WORDS_MAX + 1
