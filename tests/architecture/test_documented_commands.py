"""Every `spotsurfer …` that a page shows is one that the command line takes: its command and its options are there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.tree import ROOT
from typer._click import Context
from typer._click.exceptions import UsageError

from spotsurfer.cli.command_table import MODULES, load

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "terraform").rglob("*.md")])
PLUGINS = {"local"}


def shown(text: str) -> Iterator[str]:
    """Command lines of blocks and of code within sentences, without what a shell does around them."""
    for block in re.findall(r"^```(?:sh|bash|console)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield from block.replace("\\\n", " ").splitlines()
    yield from re.findall(r"^ {4,}(?:\S+=\S+ )*(?=spotsurfer )(.+)$", text, re.MULTILINE)
    yield from re.findall(r"`(spotsurfer [^`\n]+)`", text)


def arguments(line: str) -> list[str] | None:
    """The words behind `spotsurfer`; None if the line is no such command."""
    found = re.search(r"(?:^|[ (])(?:\S*/)?spotsurfer( [^\n]*)?$", line.strip())
    if found is None:
        return None
    text = re.sub(r"\$\([^)]*\)", "WORD", found[1] or "").replace(")", "")
    try:
        words = shlex.split(text, comments=True)
    except ValueError:  # a quotation that began before the command
        words = shlex.split(re.split(r" [|;&>]|'|\"", text)[0], comments=True)
    return words[: next((i for i, w in enumerate(words) if w in ("|", ">", "&", "&&", ";", "2>")), len(words))]


def refusal(words: list[str]) -> str:
    """Why the command line would not take them; "" if it does."""
    if not words or words[0].startswith("-") or words[0] in PLUGINS or not re.fullmatch(r"[a-z-]+", words[0]):
        return ""
    if words[0] not in MODULES:
        return f"there is no command {words[0]!r}"
    command: Any = load(MODULES[words[0]])[words[0]]
    rest = words[1:]
    while getattr(command, "commands", None) and rest and rest[0] in command.commands:
        command, rest = command.commands[rest[0]], rest[1:]
    try:
        command.make_parser(Context(command, **command.context_settings)).parse_args(list(rest))
    except UsageError as e:
        return e.format_message()
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_of_a_page_exist(page: Path) -> None:
    wrong = []
    for line in shown(page.read_text()):
        words = arguments(line)
        if words is not None and (why := refusal(words)):
            wrong.append(f"{line.strip()}: {why}")
    assert not wrong, "\n".join(wrong)
