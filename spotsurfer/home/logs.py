"""Writes a job's output to the files that its user named, while it runs and at its end.

Each byte has its place in the file, and what was written is noted after it: a write that is done again after a kill changes
nothing. If the job went back to a checkpoint, it may print something else from there on; so the end of a job that moved writes
its whole output once more.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from spotsurfer.home.book import Awaited, Book
from spotsurfer.web.client import Client, Json, job_path

PLACE = ("out", "err", "times")
FULL_BYTES = 1 << 19  # after an answer of so much there is probably more
PATTERN = re.compile(r"\{(number|task|job|name)(?::([0-9]{1,2}))?\}")


def expanded(pattern: str, facts: Mapping[str, object]) -> str:
    """A path with "{number}", "{task}", "{job}" and "{name}" replaced by these facts; "{task:4}" fills up with zeros."""

    def one(found: re.Match[str]) -> str:
        value = facts[found[1]]
        return "" if value is None else str(value).replace("/", "_").zfill(int(found[2] or 0))

    return PATTERN.sub(one, pattern)


def write(client: Client, book: Book, one: Awaited, view: Json, *, last: bool) -> bool:
    """Fetch and write what was printed since the last time; returns whether that was anything. `last`: the job has ended.

    Raises OSError if a file can't be written, and the controller's errors.
    """
    files = {"out": one.stdout, "err": one.stderr or one.stdout}
    if not any(files.values()):
        return False
    state = dict(one.printed) or _fresh(files, append=one.append)
    if last and not state["whole"] and _moved(view):
        state |= {"place": {}, "at": dict(state["base"]), "whole": True}
    book.printed(one.job, state)
    found = False
    while parts := _more(client, one.job, files, state):
        found = True
        book.printed(one.job, state)
        if not last and parts < FULL_BYTES:
            break
    if last and state["whole"] and not state["cut"]:
        for path, length in state["at"].items():
            with suppress(FileNotFoundError):  # its user removed it, and nothing was printed into it since
                os.truncate(path, length)
        book.printed(one.job, state | {"cut": True})  # once: later the job's own file may stand there
    return found


def _fresh(files: dict[str, str], *, append: bool) -> Json:
    base = _begun(set(filter(None, files.values())), append=append)
    return {"place": {}, "at": dict(base), "base": base, "whole": False, "cut": False}


def _more(client: Client, job: str, files: dict[str, str], state: Json) -> int:
    """Write one answer; returns its bytes."""
    parts, told = client.framed(job_path(job, "log"), **state["place"])
    for head, data in parts:
        if path := files[head["stream"]]:
            state["at"][path] = _put(Path(path), state["at"][path], data)
    state["place"] = {name: told["next"][name] for name in PLACE}
    return sum(len(data) for _, data in parts)


def _moved(view: Json) -> bool:
    return sum(1 for a in view.get("attempts", []) if a.get("granted_at")) > 1


def _begun(paths: set[str], *, append: bool) -> dict[str, int]:
    """Make the files; where the output begins in each."""
    begins = {}
    for name in paths:
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab" if append else "wb") as file:
            begins[name] = file.tell()
    return begins


def _put(path: Path, at: int, data: bytes) -> int:
    """Write `data` at its place; returns where it ends."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        end, view = at + len(data), memoryview(data)
        while at < end:
            at += os.pwrite(fd, view[len(view) - (end - at) :], at)
        return at
    finally:
        os.close(fd)
