"""Runs a page of the documentation as a reader would: one shell, block after block, exactly as they stand.

What the source of a page may say, besides its blocks:

- ```` ```toml title="job.toml" ```` is a file that the reader writes.
- ```` ```text ```` behind a block is what that block prints: `…` stands for any text or any lines, a number for any number.
- `<!-- sh` … `-->` is run and not shown: it makes what a reader has already, or waits as a reader would.
- `<!-- not run: REASON -->` before a block: nothing here can run it.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from support.patience import FACTOR
from support.tree import ROOT

SHELL = ("sh", "bash", "console")
BLOCK_SECONDS = 420.0
NUMBER = r"\d+(?:\\?[.m]\d+)*"
LOOK_SECONDS = 0.2
SOURCE = re.compile(
    r"^<!-- sh\n(?P<hidden>.*?)^-->$"
    r'|(?:^<!-- not run: (?P<why>[^\n]+) -->\n)?^```(?P<language>\w+)(?: title="(?P<file>[^"]+)")?\n(?P<text>.*?)^```$',
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A block of a page."""

    place: str  # page and line
    language: str
    text: str
    file: str = ""  # the reader writes it
    why_not: str = ""  # it is not run

    @property
    def runs(self) -> bool:
        return self.language in SHELL and not self.why_not


def blocks(page: Path, section: str = "") -> Iterator[Block]:
    """All blocks of a page, or those of a section (its heading without #)."""
    text = page.read_text()
    begin = text.index(f"\n## {section}\n") if section else 0
    end = text.find("\n## ", begin + 1) if section else -1
    for found in SOURCE.finditer(text, begin, len(text) if end < 0 else end):
        place = f"{page.name}:{text.count(chr(10), 0, found.start()) + 1}"
        hidden = found["hidden"]
        if hidden is not None:
            yield Block(place, "sh", hidden)
        else:
            yield Block(place, found["language"], found["text"], found["file"] or "", found["why"] or "")


def unlike(shown: str, said: str) -> str:
    """The first line of a page's picture of an output that the output does not have at that place; "" if it is like it."""
    lines = iter(said.splitlines())
    skips = False
    for line in filter(str.strip, shown.splitlines()):
        if line.strip() == "…":
            skips = True
            continue
        pattern = re.compile(_pattern(line))
        found = any(pattern.fullmatch(x.strip()) for x in lines) if skips else pattern.fullmatch(_next(lines))
        if not found:
            return line
        skips = False
    return "" if skips or not _next(lines) else "the end"


def _next(lines: Iterator[str]) -> str:
    return next((x.strip() for x in lines if x.strip()), "")


def _pattern(line: str) -> str:
    """Any number or time for one (18, 1.83, 1m02), any text for …, and any room between words."""
    words = (re.sub(NUMBER, lambda _: NUMBER, re.escape(word).replace("…", ".*")) for word in line.split())
    return r"\s+".join(words)


class Reader:
    """A person at a shell who types what pages say."""

    def __init__(self, shell: subprocess.Popen[bytes], folder: Path) -> None:
        self._shell, self._folder, self._typed = shell, folder, 0
        self.places: Mapping[str, str] = {}  # paths of a page, and where they lie in this test
        self.acts: Mapping[str, Callable[[], object]] = {}  # lines that the test does instead of the shell

    def follow(self, page: Path, section: str = "", seconds: float = BLOCK_SECONDS) -> str:
        """Do what a page says, or one section of it; a block may take so many seconds. What all of it printed.

        Raises AssertionError for a command that fails, and for an output that is not like the one in the page.
        """
        told, said = "", ""
        chosen = list(blocks(page, section))
        assert any(b.runs for b in chosen), f"{page} says nothing to do in {section!r}"
        for block in chosen:
            if block.file:
                self.type(f"cat >{block.file} <<'END OF FILE'\n{block.text}END OF FILE\n", block.place, seconds)
            elif block.runs:
                said = self._do(block, seconds)
                told += said
            elif block.language == "text" and not block.why_not:
                wrong = unlike(self._ours(block.text), said)
                assert not wrong, f"{block.place}: nobody printed {wrong!r}, but\n{said}"
        return told

    def _do(self, block: Block, seconds: float) -> str:
        said, typed = "", ""
        for line in block.text.splitlines(keepends=True):
            if (act := self.acts.get(line.partition("  #")[0].strip())) is None:
                typed += line
                continue
            said += self.type(typed, block.place, seconds)
            typed = ""
            act()
        return said + self.type(typed, block.place, seconds)

    def _ours(self, text: str) -> str:
        for place, ours in self.places.items():
            text = text.replace(place, ours)
        return text

    def type(self, text: str, place: str = "", seconds: float = BLOCK_SECONDS) -> str:
        """Run lines in the shell; what they printed. Raises AssertionError if one fails, or lasts too long."""
        self._typed += 1
        script = self._folder / f"typed-{self._typed}.sh"
        script.write_text(self._ours(text))
        end = f"@@{self._typed} is done@@\n"
        assert self._shell.stdin is not None
        self._shell.stdin.write(f". {script} </dev/null; printf '%s' '{end}'\n".encode())
        self._shell.stdin.flush()
        said, whole = self._listen(end, seconds)
        script.with_suffix(".said").write_text(said)
        assert whole, f"{place}: failed, or took longer than {seconds} s:\n{text}\nIt said\n{said[-6000:]}"
        return said

    def _listen(self, end: str, seconds: float) -> tuple[str, bool]:
        """What is printed before `end`; whether that came."""
        assert self._shell.stdout is not None
        until, heard = time.monotonic() + seconds * FACTOR, b""
        while time.monotonic() < until:
            over = self._shell.poll() is not None  # what runs in the background may keep the pipe open
            if not select.select([self._shell.stdout], [], [], LOOK_SECONDS)[0]:
                if over:
                    break
                continue
            more = os.read(self._shell.stdout.fileno(), 1 << 16)
            heard += more
            if heard.endswith(end.encode()):
                return heard.decode(errors="replace").removesuffix(end), True
            if not more:
                break
        return heard.decode(errors="replace"), False


@contextmanager
def reader(folder: Path, home: Path | None = None, **environment: str) -> Iterator[Reader]:
    """A shell in `home` (by default: the checkout) with `spotsurfer` in its PATH; its own files lie in `folder`.

    At the end all that it started and that is still of its session is killed; boxes are not.
    """
    programs = folder / "reader"
    programs.mkdir(parents=True)
    program = programs / "spotsurfer"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m spotsurfer "$@"\n')
    program.chmod(0o755)
    given = {
        **{k: v for k, v in os.environ.items() if not k.startswith("SPOTSURFER_") or k.startswith("SPOTSURFER_RUNTIME")},
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(folder),
        "SPOTSURFER_RUNTIME__PATH": str(ROOT / "build" / "runtime"),
        **environment,
    }
    shell = subprocess.Popen(
        ["bash", "--norc"],
        cwd=home or ROOT,
        env=given,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    made = Reader(shell, programs)
    try:
        made.type("set -e -o pipefail -m\n")
        yield made
    finally:
        _end_session(shell.pid)
        shell.communicate()


def _end_session(session: int) -> None:
    """Ends what a shell started: politely, so that a controller leaves its boxes in order, then not."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + 15 * FACTOR
        for pid in _members(session):
            with suppress(ProcessLookupError):
                os.kill(pid, sign if pid != session else signal.SIGKILL)
        while _members(session) and time.monotonic() < until:
            time.sleep(0.1)


def _members(session: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, of = stat.read_text().rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                found.append(int(stat.parent.name))
    return found
