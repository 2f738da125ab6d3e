"""Every `spotsurfer …` that a page shows is one that the command line takes; those for users are run, or it is said why not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.command_lines import arguments, is_one_of, refusal, shown, within_sentences
from support.page_runs import Block, blocks
from support.tree import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "terraform").rglob("*.md")])
PROSE = [ROOT / "README.md", ROOT / "docs/tutorial.md", *sorted((ROOT / "docs/guides").glob("*.md"))]
# Pages that a test follows with a shell, whole: tests/boxes/test_{guides,tutorial,eda_page,recovery_page}.py, tests/clients.
FOLLOWED = [*PROSE, *(ROOT / "docs" / f"{name}.md" for name in ("eda-in-ten-minutes", "genomics-in-ten-minutes", "recovery"))]
WHY_NOT = re.compile(r"<!-- not run: (?:(spotsurfer [^:\n]+): )?([^\n]+) -->")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_of_a_page_exist(page: Path) -> None:
    wrong = []
    for line in shown(page.read_text()):
        words = arguments(line)
        if words is not None and (why := refusal(words)):
            wrong.append(f"{line.strip()}: {why}")
    assert not wrong, "\n".join(wrong)


def commands(found: list[Block]) -> list[list[str]]:
    """The commands of blocks, each as the words behind `spotsurfer`."""
    lines = (line for b in found for line in b.text.replace("\\\n", " ").splitlines() if not line.lstrip().startswith("#"))
    return [words for line in lines if (words := arguments(line))]


def test_each_command_for_users_is_run_or_says_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    run = commands([b for page in FOLLOWED for b in blocks(page) if b.runs or (b.language == "sh" and b.file)])
    reasons = {page: dict(WHY_NOT.findall(page.read_text())) for page in PROSE}
    only_parsed, wrong = [], []
    for page in PROSE:
        for block in blocks(page):
            if block.language == "sh" and block.why_not:
                only_parsed += [(page.name, f"{len(commands([block]))} commands", block.why_not)]
        for text in within_sentences(page.read_text()):
            words = arguments(text)
            if not words or any(is_one_of(words, one) for one in run):
                continue
            why = next((why for known, why in reasons[page].items() if known and text.startswith(known)), "")
            only_parsed += [(page.name, text, why)] if why else []
            wrong += [] if why else [f"{page.name}: {text}"]
    with capsys.disabled():
        print(f"\n{len(run)} commands are run, {len(only_parsed)} places are only parsed:")
        print("\n".join(f"  {page}: {what}: {why}" for page, what, why in only_parsed))
    assert not wrong, "no test runs them, and no `<!-- not run: COMMAND: REASON -->` says why:\n" + "\n".join(wrong)


@pytest.mark.parametrize("page", PROSE, ids=lambda p: p.name)
def test_all_commands_stand_in_blocks_that_a_shell_runs(page: Path) -> None:
    """No indented block: the shell of the tests does not see those."""
    text = re.sub(r"^```.*?^```|^<!--.*?-->", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"^ {4,}(?:spotsurfer|make|cd|export|terraform|gcloud) .*$", text, re.MULTILINE) == []


@pytest.mark.parametrize("page", PROSE, ids=lambda p: p.name)
def test_a_test_that_a_reason_names_is_there(page: Path) -> None:
    for _, why in WHY_NOT.findall(page.read_text()):
        for path in re.findall(r"tests/[\w/]+(?:\.py)?", why):
            assert (ROOT / path).exists(), path
