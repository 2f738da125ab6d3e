"""Opening the database: migrations, SQLite settings, one controller at a time; and read-only access from outside."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, delete, event, insert, inspect, select, text
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import StaticPool

from spotsurfer.common import private_files
from spotsurfer.model.errors import ControllerRunning, DiskFull, SpotsurferError
from spotsurfer.state import schema

# ---- Read-only access: it creates, migrates and changes nothing, and a controller may be using the database

LOOK_BUSY_SECONDS = 30.0
TICK_STEPS = 100_000  # of SQLite's virtual machine: some tens of milliseconds


@dataclass(frozen=True, slots=True)
class Seen:
    """The contents of a database in short. A new, unused one has no jobs."""

    family: str | None  # of its controllers
    schema: str | None  # its last migration
    jobs: int
    newest_at: str  # ISO time of the last event; "" = there was none


NOTHING = Seen(None, None, 0, "")


def look_read_only(path: Path, remedy: str = "Restore a backup.") -> Seen:
    """The contents of the database; `NOTHING` if the file is missing. Raises SpotsurferError with the remedy if damaged."""
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


def copy_database(path: Path, to: Path, tick: Callable[[], None] = lambda: None) -> None:
    """Copy the database, as it is at one moment, into an empty or new file. Raises SpotsurferError, DiskFull.

    It calls `tick` repeatedly during the copy, so that Ctrl-C can end it.
    """
    try:
        with contextlib.closing(_opened(path)) as c:
            c.set_progress_handler(tick, TICK_STEPS)
            c.execute("VACUUM INTO ?", [str(to)])
    except sqlite3.Error as e:
        if e.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:  # only `tick` interrupts it; SQLite swallows its exception
            raise KeyboardInterrupt from e
        if "full" in str(e):
            raise DiskFull(f"{to.parent}: no space for a copy of the database; free some space") from e
        raise SpotsurferError(f"The database {path} can't be copied: {e}.") from e


def _opened(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=LOOK_BUSY_SECONDS)


# ---- Opening: migrations, settings of SQLite, and one controller at a time

BUSY_SECONDS = 30
MIGRATIONS = Path(__file__).parent / "migrations"


def open_database(path: Path | None) -> Engine:
    """The engine on `path`, migrated to the newest schema; None = in memory, for tests.

    Raises DiskFull, or SpotsurferError with the reason if the file can't be used or a newer version migrated it.
    """
    if path is None:
        engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    else:
        private_files.make(path.parent)
        path.touch(mode=0o600)  # the files that SQLite makes beside it get the same rights
        engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False})
    event.listen(engine, "connect", _prepare)
    try:
        _migrate(engine)
    except OperationalError as e:
        if "full" in str(e.orig):
            raise DiskFull(f"{path}: no space for the database; free some space") from e
        raise SpotsurferError(f"{path}: the database can't be opened: {e.orig}") from e
    return engine


def _prepare(connection: object, _record: object) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]
    # FULL: if a power cut lost a journal entry, its effect would be unrecorded.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _migrate(engine: Engine) -> None:
    with engine.connect() as connection:
        had, newest = schema_version(connection), newest_version()
    if had == newest:
        return
    if had is not None and had > newest:
        raise SpotsurferError(
            f"{engine.url.database} was migrated by a newer spotsurfer: install that one again, or restore a backup "
            f"from before (schema {had}, here {newest})"
        )
    migrate(engine, "head")


def migrate(engine: Engine, version: str) -> None:
    """Bring the schema up to a version."""
    from alembic import command  # it takes ten megabytes for the life of the process, so only if needed
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("version_path_separator", "os")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, version)


def schema_version(connection: Connection) -> str | None:
    """The last migration of a database, as Alembic recorded it; None = none."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def newest_version() -> str:
    """The newest migration of this version: the digits in the names of the migration files."""
    return max(path.name for path in (MIGRATIONS / "versions").glob("v*.py"))[1:5]


def lock_state(folder: Path) -> int:
    """Hold the state folder for this process; the descriptor must stay open. Raises ControllerRunning."""
    private_files.make(folder)
    fd = os.open(folder / "controller.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise ControllerRunning(f"another controller runs on {folder}: stop it, or use another controller.data_dir") from None
    return fd


def remember(connection: Connection, key: str, value: str) -> str:
    """The value kept under `key`; the first one wins."""
    found = recalled(connection, key)
    if found is not None:
        return found
    connection.execute(insert(schema.meta).values(key=key, value=value))
    return value


def recalled(connection: Connection, key: str) -> str | None:
    """The value kept under `key`; None if there is none."""
    found = connection.execute(select(schema.meta.c.value).where(schema.meta.c.key == key)).scalar()
    return None if found is None else str(found)


def keep(connection: Connection, key: str, value: str) -> None:
    """Keep a value in place of the one before."""
    row = upsert(schema.meta).values(key=key, value=value)
    connection.execute(row.on_conflict_do_update(index_elements=["key"], set_={"value": value}))


def new_family(engine: Engine) -> str:
    """The controller family of this database: made once, never changed."""
    with engine.begin() as connection:
        return remember(connection, "family", secrets.token_hex(6))


def first_time(engine: Engine, key: str, now: datetime) -> datetime:
    """When this was first asked for under `key`; now, if it is the first time."""
    with engine.begin() as connection:
        return datetime.fromisoformat(remember(connection, key, now.isoformat()))


def become(connection: Connection, family: str) -> None:
    """Assign the database to a family; the caller has checked that it has no jobs of another one."""
    connection.execute(delete(schema.meta).where(schema.meta.c.key == "family"))
    remember(connection, "family", family)
