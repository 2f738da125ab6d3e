"""docs/compatibility.md: each line belongs to an entry, and a run of some programs touches nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from programs import page
from programs.entry import Entry, names
from programs.page import Row
from support.tree import ROOT

PAGE = ROOT / "docs" / "compatibility.md"


@pytest.fixture
def known() -> list[Entry]:
    """Entries that were run: an entry that was not has no line yet (`programs.run --new` makes it)."""
    found = page.lines(PAGE.read_text())
    return [e for e in map(Entry.load, names()) if e.title in found]


def test_each_line_was_written_by_a_run_of_an_entry_that_exists_and_as_it_promises(known: list[Entry]) -> None:
    promised = {e.title: e for e in known}
    found = page.lines(PAGE.read_text())
    assert set(found) == set(promised)
    for title, line in found.items():
        cells = line.strip("| ").split(" | ")
        assert promised[title].what.replace("|", "\\|") in cells
        disks = promised[title].disks
        identical = f"identical on {' and '.join(disks)}" if len(disks) > 1 else "identical"
        assert cells[-1].startswith("refused: ") if promised[title].refused else cells[-1] == identical


def test_a_run_replaces_its_lines_and_leaves_the_words_around_them(known: list[Entry], tmp_path: Path) -> None:
    copy = tmp_path / "page.md"
    copy.write_text(PAGE.read_text().replace("## What", "Words by hand.\n\n## What", 1))
    before = copy.read_text().splitlines()
    page.write(copy, [Row(known[0], "FAILED: it ended", False)], known)
    after = copy.read_text().splitlines()
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert len(changed) == 1
    assert changed[0][1].startswith(f"| {known[0].title.replace('|', chr(92) + '|')} |")


def test_the_line_of_a_program_that_is_no_more_goes(known: list[Entry], tmp_path: Path) -> None:
    copy = tmp_path / "page.md"
    copy.write_text(PAGE.read_text())
    page.write(copy, [], known[1:])
    assert set(page.lines(copy.read_text())) == {e.title for e in known[1:]}


def test_a_page_without_its_marks_is_refused(tmp_path: Path) -> None:
    copy = tmp_path / "page.md"
    copy.write_text("# Nothing\n")
    with pytest.raises(ValueError, match="<!-- programs -->"):
        page.write(copy, [], [])
