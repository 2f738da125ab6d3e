"""Generated parts of the documentation are fresh; every kind of failure has its own exit code."""

import re
import runpy
from pathlib import Path

import pytest
import reference_pages
from support.tree import ROOT

from spotsurfer.cli.command_table import MODULES, load
from spotsurfer.doctor.checks import CHECKS, PAGE
from spotsurfer.doctor.checks import PAGES as PAGES_OF_CHECKS
from spotsurfer.jobspec.keys import KEYS
from spotsurfer.model.errors import every_kind
from spotsurfer.model.state_machine import ATTEMPT, JOB, MACHINE

DOCS = runpy.run_path(str(ROOT / "scripts" / "docs.py"))


def test_exit_codes_are_unique() -> None:
    codes = [k.exit_code for k in every_kind()]
    assert len(codes) == len(set(codes))
    assert all(1 <= c <= 125 for c in codes), "0 is success, 126 and above belong to the shell"


def test_every_kind_sets_its_own_code_and_meaning() -> None:
    assert len(every_kind()) > 20
    for kind in every_kind():
        assert "exit_code" in vars(kind) and vars(kind)["__doc__"], kind


@pytest.mark.parametrize("page", sorted({k.page for k in every_kind()} - {""} | set(PAGES_OF_CHECKS.values()) | {PAGE}))
def test_failures_and_findings_name_pages_that_are_there(page: str) -> None:
    path, _, anchor = page.partition("#")
    assert (ROOT / path).exists()
    assert not anchor or anchor in anchors((ROOT / path).read_text())


def test_checks_with_a_page_of_their_own_are_there() -> None:
    assert set(PAGES_OF_CHECKS) <= {name for name, _ in CHECKS} | {"notify"}


def test_the_page_of_exit_codes_has_the_table() -> None:
    page = (ROOT / "docs/reference/exit-codes.md").read_text()
    found = re.search(r"<!-- exit-codes -->\n(.*?)<!-- /exit-codes -->", page, re.DOTALL)
    assert found, "the markers are gone"
    assert found[1].strip() == DOCS["exit_code_table"](), "call make docs"


def test_the_page_of_costs_has_the_tables_of_prices() -> None:
    found = re.search(
        r"<!-- price-tables -->\n(.*?)<!-- /price-tables -->", (ROOT / "docs" / "costs.md").read_text(), re.DOTALL
    )
    assert found, "the markers are gone"
    assert found[1].strip() == DOCS["price_tables"](), "call make docs"


def test_states_page_is_fresh() -> None:
    assert (ROOT / "docs" / "states.md").read_text() == DOCS["states_page"](), "call make docs"


def test_states_page_draws_every_edge() -> None:
    edges = sum(len(e) for table in (JOB, ATTEMPT, MACHINE) for e in table.values())
    drawn = re.findall(r"^    \w+ --> \w+: .+$", DOCS["states_page"](), re.MULTILINE)
    assert len(drawn) == edges


@pytest.mark.parametrize("name", reference_pages.PAGES)
def test_pages_of_the_reference_are_fresh(name: str) -> None:
    assert (ROOT / name).read_text() == reference_pages.PAGES[name](), "call make docs"


LINK = re.compile(r"\[[^\]]*\]\((?![a-z]+:)([^)#\s]*)(?:#([^)\s]+))?\)")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("terraform/*/*.md"), ROOT / "tests/README.md"])


def anchors(text: str) -> set[str]:
    """Of the headings, as readers of Markdown make them."""
    heads = (h.lower().replace("`", "") for h in re.findall(r"^#+ (.+)$", text, re.MULTILINE))
    return {re.sub(r"[^\w -]", "", h).strip().replace(" ", "-") for h in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```|`[^`\n]+`", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for path, anchor in LINK.findall(text):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {path}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target.read_text()), f"{page.name} links to {path}#{anchor}"


def test_the_readme_is_read_in_two_minutes() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 8192


def sentences(text: str) -> list[str]:
    """Of the prose of a page: no blocks of code, no tables, no headings."""
    text = re.sub(r"^```.*?^```|<!--.*?-->", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^(?: {4,}|\||#).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`", "code", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text))
    paragraphs = (" ".join(p.split()) for p in re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.) ", text, flags=re.MULTILINE))
    return [s for p in paragraphs for s in re.split(r"(?<=[.!?:])\s+(?=[A-Z\"'*(c])", p) if re.search(r"\w", s)]


PROSE = [ROOT / "README.md", ROOT / "docs/index.md", ROOT / "docs/tutorial.md", *(ROOT / "docs/guides").glob("*.md")]
WORDS_MEAN, WORDS_MAX = 17, 35


@pytest.mark.parametrize("page", PROSE, ids=lambda p: p.name)
def test_sentences_are_short(page: Path) -> None:
    counts = {s: len(s.split()) for s in sentences(page.read_text())}
    assert max(counts.values()) <= WORDS_MAX, max(counts, key=counts.__getitem__)
    assert sum(counts.values()) / len(counts) <= WORDS_MEAN


OF_THE_CALL = {"--dry-run", "--wait", "--timeout", "--json", "--quiet", "-q"}  # options of submit that say nothing of the job


def test_each_option_of_submit_says_the_same_as_a_key() -> None:
    options = {o for p in load(MODULES["submit"])["submit"].params for o in p.opts if o.startswith("-")}
    assert {key.option for key in KEYS.values() if key.option} - {"-- prog args"} == options - OF_THE_CALL
