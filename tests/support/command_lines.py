"""Finds `spotsurfer …` in texts, and asks the command line whether it takes it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

from typer._click import Context
from typer._click.exceptions import UsageError
from typer.main import get_command

from spotsurfer.cli.command_table import MODULES, PLUGINS, load

SEPARATORS = ("|", "||", ">", "&", "&&", ";", "2>", "<", ">/dev/null", "2>/dev/null")
PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9_./-]*|\S*…\S*")  # of a sentence: JOB, NUMBER, DIR


def shown(text: str) -> Iterator[str]:
    """Command lines of blocks and of code within sentences, without what a shell does around them."""
    for block in re.findall(r"^```(?:sh|bash|console)[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield from block.replace("\\\n", " ").splitlines()
    yield from re.findall(r"^ {4,}(?:\S+=\S+ )*(?=spotsurfer )(.+)$", text, re.MULTILINE)
    yield from within_sentences(text)


def within_sentences(text: str) -> list[str]:
    """Those of code within sentences and tables."""
    return re.findall(r"`(spotsurfer [^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


def arguments(line: str) -> list[str] | None:
    """The words behind `spotsurfer`; None if the line is no such command."""
    found = re.search(r"(?:^|[ ('])(?:[^\s=]*/)?spotsurfer( [^\n]*)?$", line.strip())
    if found is None:
        return None
    text = re.sub(r"\$\([^)]*\)", "WORD", found[1] or "").replace(")", "")
    try:
        words = shlex.split(text, comments=True)
    except ValueError:  # a quotation that began before the command
        words = shlex.split(re.split(r" [|;&>]|'|\"", text)[0], comments=True)
    words = [w.removesuffix(";") for w in words[: next((i + 1 for i, w in enumerate(words) if w.endswith(";")), len(words))]]
    return words[: next((i for i, w in enumerate(words) if w in SEPARATORS or w.startswith(">")), len(words))]


def refusal(words: list[str]) -> str:
    """Why the command line would not take them; "" if it does."""
    if not words or words[0].startswith("-") or not re.fullmatch(r"[a-z-]+", words[0]):
        return ""
    command: Any = command_named(words[0])
    if command is None:
        return f"there is no command {words[0]!r}"
    rest = words[1:]
    while getattr(command, "commands", None) and rest and rest[0] in command.commands:
        command, rest = command.commands[rest[0]], rest[1:]
    try:
        command.make_parser(Context(command, **command.context_settings)).parse_args(list(rest))
    except UsageError as e:
        return e.format_message()
    return ""


def command_named(name: str) -> Any:
    """The command or group of this name, plug-ins included; None if there is none."""
    if name in MODULES:
        return load(MODULES[name])[name]
    plugin = next((p for p in entry_points(group=PLUGINS) if p.name == name), None)
    return plugin and get_command(plugin.load())


def is_one_of(sentence: list[str], run: list[str]) -> bool:
    """Whether a command of a sentence is the beginning of one that was run; JOB and its like stand for any word."""
    return len(sentence) <= len(run) and all(
        PLACEHOLDER.fullmatch(ours) or ours == theirs for ours, theirs in zip(sentence, run, strict=False)
    )
