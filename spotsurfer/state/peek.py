"""A look at a controller's database from outside: nothing is made, migrated or changed, and a controller may be using it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spotsurfer.model.errors import DiskFull, SpotsurferError

BUSY_SECONDS = 30.0
TICK_STEPS = 100_000  # of SQLite's virtual machine: some tens of milliseconds


@dataclass(frozen=True, slots=True)
class Seen:
    """What a database holds. A new one, in which nobody did anything yet, has no jobs."""

    family: str | None  # of its controllers
    schema: str | None  # its last migration
    jobs: int
    newest_at: str  # ISO time of the last thing that happened; "" = nothing did


NOTHING = Seen(None, None, 0, "")


def look(path: Path, remedy: str = "Restore a backup.") -> Seen:
    """What is in the database; `NOTHING` if there is no file. Raises SpotsurferError, with the remedy, if it is damaged."""
    if not path.exists():
        return NOTHING
    try:
        with contextlib.closing(_opened(path)) as c:
            if (bad := c.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise SpotsurferError(f"The database {path} is damaged: {bad}. {remedy}")
            tables = {str(row[0]) for row in c.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}

            def one(table: str, query: str) -> str | None:
                row = c.execute(query).fetchone() if table in tables else None
                return None if row is None or row[0] is None else str(row[0])

            return Seen(
                family=one("meta", "SELECT value FROM meta WHERE key = 'family'"),
                schema=one("alembic_version", "SELECT version_num FROM alembic_version"),
                jobs=int(one("job", "SELECT count(*) FROM job") or 0),
                newest_at=one("moment", "SELECT max(at) FROM moment") or "",
            )
    except sqlite3.Error as e:
        raise SpotsurferError(f"The database {path} can't be read: {e}. {remedy}") from e


def copy(path: Path, to: Path, tick: Callable[[], None] = lambda: None) -> None:
    """The database as it is at one moment, into an empty or new file. Raises SpotsurferError, DiskFull.

    `tick` is called again and again while that takes its time; Ctrl-C ends it then.
    """
    try:
        with contextlib.closing(_opened(path)) as c:
            c.set_progress_handler(tick, TICK_STEPS)
            c.execute("VACUUM INTO ?", [str(to)])
    except sqlite3.Error as e:
        if e.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:  # nothing else interrupts it: SQLite swallows what `tick` raises
            raise KeyboardInterrupt from e
        if "full" in str(e):
            raise DiskFull(f"{to.parent}: no space for a copy of the database; free some space") from e
        raise SpotsurferError(f"The database {path} can't be copied: {e}.") from e


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
