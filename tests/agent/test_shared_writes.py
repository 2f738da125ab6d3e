"""What a save keeps of shared files that a process has open for writing: by real descriptors and mappings, without CRIU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from spotsurfer_agent.chunks.writer import Table
from spotsurfer_agent.host.root_fs import Mount
from spotsurfer_agent.save import shared_writes
from spotsurfer_agent.save.shared_writes import Caught, SharedWrites, open_for_writing
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.manifest import GROWS, KEPT, UNKEPT, Extents, Stored

CHUNK = Stored("a" * 64, 4)
HOLDS = """\
import mmap, os, sys
os.chdir(sys.argv[1])
log, end = open("log", "ab", buffering=0), open("end", "wb", buffering=0)
log.write(b"begin"); end.write(b"begin")
place = os.open("place", os.O_RDWR | os.O_CREAT); os.pwrite(place, b"1234", 0)
mapped = os.open("mapped", os.O_RDWR | os.O_CREAT); os.ftruncate(mapped, 4096)
memory = mmap.mmap(mapped, 4096); os.close(mapped)
gone = open("gone", "wb"); os.unlink("gone")
silly = open(".nfs0001", "wb")
read = open("place", "rb")
for line in sys.stdin:
    print(exec(line), flush=True)
"""


class Holder:
    """A process that holds the files, and what a save sees of it."""

    def __init__(self, base: Path) -> None:
        self.far = base / "shares/out"
        self.far.mkdir(parents=True)
        words = [sys.executable, "-c", HOLDS, str(self.far)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.mounts = [Mount("share-out", str(self.far), str(self.far)), Mount("share-ref", "/r", "/r", True)]
        self.keeps = SharedWrites(base, Keys.derive(b"", "j"))
        self.does("pass")

    def does(self, line: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline()

    def ahead(self) -> None:
        self.keeps.ahead(lambda: [self.process.pid], self.mounts, copies=True)

    def caught(self, *, stays: bool = False) -> Caught:
        return self.keeps.catch([self.process.pid], self.mounts, {CHUNK.digest: CHUNK}, stays=stays)

    def saved(self, caught: Caught) -> None:
        table = Table()
        content = Extents.of([(0, 4, table.index_of(CHUNK), 0)])
        records = [replace(x, entry=replace(x.entry, extents=content)) if x.way == KEPT else x for x in caught.records]
        self.keeps.remember(caught, records, table)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    made = Holder(tmp_path)
    yield made
    made.process.kill()
    made.process.communicate()


def ways(caught: Caught) -> dict[str, str]:
    return {x.entry.path.removeprefix("out/"): x.way for x in caught.records}


def kept(caught: Caught, name: str) -> bytes:
    return caught.places[f"out/{name}"].read_bytes()


def test_what_is_open_for_writing_is_found_with_how_it_is_written(holder: Holder) -> None:
    assert ways(holder.caught()) == {"log": GROWS, "end": GROWS, "place": KEPT, "mapped": KEPT}
    assert open_for_writing([holder.process.pid], holder.mounts[1:]) == []


@pytest.mark.parametrize("stays", [False, True])
def test_the_content_is_that_of_the_freeze(holder: Holder, stays: bool) -> None:
    """Whatever was written after the copy ahead: through a descriptor, through a mapping, shorter, longer."""
    holder.does("os.pwrite(place, b'x' * 300_000, 0)")
    holder.ahead()
    holder.does("os.pwrite(place, b'new', 270_000); memory[7:10] = b'new'")
    caught = holder.caught(stays=stays)
    assert kept(caught, "place") == b"x" * 270_000 + b"new" + b"x" * 29_997
    assert kept(caught, "mapped")[7:10] == b"new"
    holder.ahead()
    holder.does("os.ftruncate(place, 2)")
    assert kept(holder.caught(stays=stays), "place") == b"xx"


def test_a_quiet_file_is_not_read_in_the_freeze(holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    holder.ahead()
    read = list[str]()
    update = shared_writes.file_copy.update
    monkeypatch.setattr(shared_writes.file_copy, "update", lambda fd, to: (read.append(to.name), update(fd, to)))
    assert kept(holder.caught(), "place") == b"1234"
    assert read == ["out%2Fmapped"], "what is mapped may be written without a trace"


def test_an_unchanged_file_is_the_chunks_of_the_save_before(holder: Holder) -> None:
    holder.saved(holder.caught())
    again = holder.caught()
    assert again.known["out/place"].chunks == [CHUNK]
    assert "out/place" not in again.places
    holder.does("os.pwrite(place, b'5', 0)")
    assert kept(holder.caught(), "place") == b"5234"


def test_one_that_went_back_is_kept_from_then_on(holder: Holder) -> None:
    holder.saved(holder.caught())
    holder.does("end.seek(0); end.write(b'B'); end.seek(0, 2)")
    assert ways(holder.caught())["end"] == KEPT
    holder.saved(holder.caught())
    assert ways(holder.caught())["end"] == KEPT
    assert ways(holder.caught())["log"] == GROWS


def test_what_is_too_large_is_told(holder: Holder) -> None:
    holder.keeps.most_bytes = 100
    caught = holder.caught()
    assert ways(caught) == {"log": GROWS, "end": GROWS, "place": KEPT, "mapped": UNKEPT}
    assert "out/mapped" in holder.keeps.warning
    holder.keeps.most_bytes = 1 << 20
    holder.caught()
    assert holder.keeps.warning == ""
