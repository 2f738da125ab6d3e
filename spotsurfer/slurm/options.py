"""Options as getopt_long(3) reads them, with its messages: clients and people see what Slurm's own programs say."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

NONE, NEEDED, OPTIONAL = 0, 1, 2  # whether an option takes a value


class Refused(Exception):
    """What was asked can't be done. `said`: for stderr, as it is."""

    def __init__(self, said: str, code: int = 1) -> None:
        super().__init__(said)
        self.said, self.code = said, code


@dataclass(frozen=True, slots=True)
class Grammar:
    """The options of one program.

    `longs`: name -> whether it takes a value; `shorts`: letter -> long name. `first_word_ends`: options end at the first word
    that is none, as a script's own may follow. `code`: exit code of a wrong call. `try_help`: its message ends with a hint.
    """

    program: str
    longs: Mapping[str, int]
    shorts: Mapping[str, str]
    first_word_ends: bool = False
    code: int = 1
    try_help: bool = True

    def refused(self, said: str) -> Refused:
        """The error of a wrong call."""
        hint = f'\nTry "{self.program} --help" for more information' if self.try_help else ""
        return Refused(f"{self.program}: {said}{hint}", self.code)


@dataclass(slots=True)
class Given:
    """What a command line holds: options in the order in which they were written, and the other words."""

    options: list[tuple[str, str | None]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def last(self, name: str) -> str | None:
        """The value that counts of an option; None = it was not given, or without a value."""
        return next((value for key, value in reversed(self.options) if key == name), None)

    def has(self, *names: str) -> bool:
        """Whether one of the options was given."""
        return any(key in names for key, _ in self.options)


def parse(grammar: Grammar, words: Sequence[str]) -> Given:
    """Raises Refused as getopt_long prints it."""
    given, rest = Given(), iter(words)
    posix = grammar.first_word_ends or "POSIXLY_CORRECT" in os.environ
    for word in rest:
        if word == "--":
            given.words += rest
        elif word.startswith("--"):
            given.options.append(_long(grammar, word[2:], rest))
        elif word.startswith("-") and len(word) > 1:
            given.options += _shorts(grammar, word[1:], rest)
        else:
            given.words.append(word)
            if posix:
                given.words += rest
    return given


def _long(grammar: Grammar, word: str, rest: Iterator[str]) -> tuple[str, str | None]:
    written, equals, value = word.partition("=")
    name = _meant(grammar, written)
    takes = grammar.longs[name]
    if equals and takes == NONE:
        raise grammar.refused(f"option '--{name}' doesn't allow an argument")
    if equals or takes != NEEDED:
        return name, value if equals else None
    following = next(rest, None)
    if following is None:
        raise grammar.refused(f"option '--{name}' requires an argument")
    return name, following


def _meant(grammar: Grammar, written: str) -> str:
    """The option that a beginning of its name stands for."""
    if written in grammar.longs:
        return written
    found = [name for name in grammar.longs if name.startswith(written)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise grammar.refused(f"unrecognized option '--{written}'")
    names = " ".join(f"'--{name}'" for name in found)
    raise grammar.refused(f"option '--{written}' is ambiguous; possibilities: {names}")


def _shorts(grammar: Grammar, letters: str, rest: Iterator[str]) -> Iterator[tuple[str, str | None]]:
    for at, letter in enumerate(letters):
        name = grammar.shorts.get(letter)
        if name is None:
            raise grammar.refused(f"invalid option -- '{letter}'")
        takes, attached = grammar.longs[name], letters[at + 1 :]
        if takes == NONE:
            yield name, None
            continue
        if attached or takes == OPTIONAL:
            yield name, attached or None
            return
        following = next(rest, None)
        if following is None:
            raise grammar.refused(f"option requires an argument -- '{letter}'")
        yield name, following
        return


def table(text: str) -> tuple[dict[str, int], dict[str, str]]:
    """`longs` and `shorts` of a Grammar from lines of words like "array=:a": `=` needs a value, `=?` may have one, :letters."""
    longs, shorts = dict[str, int](), dict[str, str]()
    for word in text.split():
        name, _, letters = word.partition(":")
        takes = OPTIONAL if name.endswith("=?") else NEEDED if name.endswith("=") else NONE
        name = name.rstrip("=?")
        longs[name] = takes
        shorts |= dict.fromkeys(letters, name)
    return longs, shorts
