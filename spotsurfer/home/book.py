"""What this user of this host awaits, in one SQLite file: jobs and their folders, how far their output was written, digests.

Every step of a delivery may be the last one before a kill, and is harmless if it is done again; the book is written after it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE, BUSY_SECONDS = "home.db", 60.0
TABLES = """
CREATE TABLE IF NOT EXISTS awaited (
  job TEXT PRIMARY KEY, place TEXT NOT NULL, home TEXT NOT NULL, stdout TEXT NOT NULL, stderr TEXT NOT NULL,
  append INTEGER NOT NULL, noted_ns INTEGER NOT NULL, printed TEXT NOT NULL DEFAULT '{}',
  state TEXT NOT NULL DEFAULT 'awaited', told TEXT NOT NULL DEFAULT '[]');
CREATE INDEX IF NOT EXISTS open ON awaited (place) WHERE state = 'awaited';
CREATE TABLE IF NOT EXISTS placed (job TEXT NOT NULL, path TEXT NOT NULL, PRIMARY KEY (job, path)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS settling (
  job TEXT PRIMARY KEY, place TEXT NOT NULL, due_ns INTEGER NOT NULL, files TEXT NOT NULL, exclude TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS digest (path TEXT PRIMARY KEY, stamp TEXT NOT NULL, sha256 TEXT NOT NULL) WITHOUT ROWID;
"""
NOTE = """INSERT OR IGNORE INTO awaited (job, place, home, stdout, stderr, append, noted_ns) VALUES (?, ?, ?, ?, ?, ?, ?)"""
AWAITED, HOME, LOST = "awaited", "home", "lost"
KEPT = 20_000  # jobs that came home; older ones are forgotten


@dataclass(frozen=True, slots=True)
class Awaited:
    """A job whose folder or output comes home. `noted_ns`: when it was submitted, nanoseconds since 1970."""

    job: str
    place: str  # of the controller, as the client names it
    home: str
    stdout: str = ""
    stderr: str = ""
    append: bool = False
    noted_ns: int = 0
    printed: dict[str, Any] = field(default_factory=dict)  # see `logs`
    state: str = AWAITED
    told: list[str] = field(default_factory=list)  # sentences for its user


@dataclass(frozen=True, slots=True)
class Settling:
    """A held job that starts once its folder has settled. `due_ns`: when, nanoseconds since 1970."""

    job: str
    place: str
    due_ns: int
    files: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


def state_folder() -> Path:
    """$XDG_STATE_HOME/spotsurfer, or where XDG puts it; made for its owner alone."""
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    folder = (named if named.is_absolute() else Path.home() / ".local/state") / "spotsurfer"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


class Book:
    """May be opened by several processes at once; a thread has its own."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or state_folder()
        self._db = sqlite3.connect(self.folder / FILE, timeout=BUSY_SECONDS, isolation_level=None)
        self._db.executescript(TABLES)

    def close(self) -> None:
        """No more is asked."""
        self._db.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield self._db
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    # ---- jobs

    def expect(self, jobs: Iterable[Awaited]) -> None:
        """Note jobs; those that are noted already stay as they are."""
        rows = [(a.job, a.place, a.home, a.stdout, a.stderr, a.append, a.noted_ns) for a in jobs]
        with self._writing() as db:
            db.executemany(NOTE, rows)
            db.execute(
                "DELETE FROM awaited WHERE state <> ? AND rowid <= (SELECT max(rowid) FROM awaited) - ?", (AWAITED, KEPT)
            )

    def open(self, place: str | None = None) -> list[Awaited]:
        """All that is awaited, of one controller or of all, the oldest first."""
        where, given = ("AND place = ?", (place,)) if place is not None else ("", ())
        return self._read(f"WHERE state = '{AWAITED}' {where} ORDER BY rowid", given)

    def jobs(self, ids: Sequence[str]) -> list[Awaited]:
        """These jobs, as far as they are known."""
        return [a for job in ids for a in self._read("WHERE job = ?", (job,))]

    def _read(self, where: str, given: Sequence[object]) -> list[Awaited]:
        columns = "job, place, home, stdout, stderr, append, noted_ns, printed, state, told"
        rows = self._db.execute(f"SELECT {columns} FROM awaited {where}", given)  # noqa: S608 -- our own text
        return [
            Awaited(job, place, home, out, err, bool(append), at, json.loads(printed), state, json.loads(told))
            for job, place, home, out, err, append, at, printed, state, told in rows
        ]

    def printed(self, job: str, printed: dict[str, Any]) -> None:
        """How far its output was written."""
        self._db.execute("UPDATE awaited SET printed = ? WHERE job = ?", (json.dumps(printed), job))

    def came(self, job: str, told: Sequence[str], state: str = HOME) -> None:
        """All of it is home, or nothing will come."""
        with self._writing() as db:
            db.execute("UPDATE awaited SET state = ?, told = ? WHERE job = ?", (state, json.dumps(list(told)), job))
            db.execute("DELETE FROM placed WHERE job = ?", (job,))

    # ---- jobs whose folder settles

    def settle(self, jobs: Iterable[Settling]) -> None:
        """Note held jobs."""
        rows = [(s.job, s.place, s.due_ns, json.dumps(s.files), json.dumps(s.exclude)) for s in jobs]
        with self._writing() as db:
            db.executemany("INSERT OR IGNORE INTO settling VALUES (?, ?, ?, ?, ?)", rows)

    def settling(self, place: str) -> list[Settling]:
        """Those of one controller."""
        rows = self._db.execute("SELECT job, place, due_ns, files, exclude FROM settling WHERE place = ?", (place,))
        return [Settling(job, at, due, tuple(json.loads(f)), tuple(json.loads(e))) for job, at, due, f, e in rows]

    def settled(self, job: str) -> None:
        """It may start, or never will."""
        self._db.execute("DELETE FROM settling WHERE job = ?", (job,))

    # ---- paths of a delivery under way

    def placed(self, job: str) -> set[str]:
        """Paths that were placed by earlier tries: what became of them since is not ours."""
        return {path for (path,) in self._db.execute("SELECT path FROM placed WHERE job = ?", (job,))}

    def place(self, job: str, paths: Iterable[str]) -> None:
        """Note paths that were placed."""
        with self._writing() as db:
            db.executemany("INSERT OR IGNORE INTO placed VALUES (?, ?)", [(job, path) for path in paths])

    # ---- digests

    def digests(self, folder: str) -> dict[str, tuple[str, str]]:
        """Stamp and SHA-256 of files below a folder, by path, as they were read last."""
        begin = folder.rstrip("/") + "/"
        rows = self._db.execute(
            "SELECT path, stamp, sha256 FROM digest WHERE path >= ? AND path < ?", (begin, begin[:-1] + "0")
        )
        return {path: (stamp, sha256) for path, stamp, sha256 in rows}

    def note_digests(self, found: Iterable[tuple[str, str, str]]) -> None:
        """Remember (path, stamp, SHA-256)."""
        with self._writing() as db:
            db.executemany("INSERT OR REPLACE INTO digest VALUES (?, ?, ?)", found)

    # ---- one at a time

    @contextlib.contextmanager
    def alone(self, what: str, *, wait: bool = False) -> Iterator[bool]:
        """A lock between processes for a block; False if another one has it. It goes with the process."""
        fd = os.open(self.folder / f"{what}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(fd)
