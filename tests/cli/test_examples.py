"""The help of each command has examples, and the command line takes each of them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.command_lines import arguments, command_named, refusal

from spotsurfer.cli.command_table import MODULES

OWN_PARSERS = ("demo", "agent-runtime")


def paths(words: tuple[str, ...] = (), inner: Any = None) -> Iterator[tuple[str, ...]]:
    """Each command and group, as the words behind `spotsurfer`."""
    if not words:
        for name in [*MODULES, "local"]:
            yield from paths((name,), command_named(name))
        return
    yield words
    for name, command in (getattr(inner, "commands", None) or {}).items():
        yield from paths((*words, name), command)


@pytest.mark.parametrize("words", tuple(paths()), ids=" ".join)
def test_examples_are_there_and_taken(words: tuple[str, ...]) -> None:
    if words[0] in OWN_PARSERS:  # they end the process
        asked = [sys.executable, "-m", "spotsurfer", *words, "--help"]
        told = " ".join(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split())
        lines = re.split(r"; |, as ", told.partition("Examples: ")[2])
    else:
        command = command_named(words[0])
        for name in words[1:]:
            command = command.commands[name]
        lines = (command.epilog or "").partition("Examples:")[2].splitlines()
    ours = [asked for line in lines if (asked := arguments(line.strip("` "))) is not None]
    assert any(one[: len(words)] == list(words) for one in ours), f"no example of {' '.join(words)}"
    wrong = {" ".join(one): why for one in ours if (why := refusal(one))}
    assert not wrong
