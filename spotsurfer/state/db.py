"""Opening the database: migrations, settings of SQLite, and one controller at a time."""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, delete, event, insert, inspect, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import StaticPool

from spotsurfer import privacy
from spotsurfer.model.errors import ControllerRunning, DiskFull, SpotsurferError
from spotsurfer.state import schema

BUSY_SECONDS = 30
MIGRATIONS = Path(__file__).parent / "migrations"


def open_database(path: Path | None) -> Engine:
    """The engine on `path`, migrated to the newest schema; None = in memory, for tests.

    Raises DiskFull or SpotsurferError with the reason where the file can't be used, or a newer version migrated it.
    """
    if path is None:
        engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    else:
        privacy.make(path.parent)
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
    # FULL: a journal entry that is lost in a power cut would be an effect nobody remembers.
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
    from alembic import command  # ten megabytes for as long as the controller runs, so only where there is work for it
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("version_path_separator", "os")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def schema_version(connection: Connection) -> str | None:
    """The last migration that a database has had, as Alembic wrote it down; None = none."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def newest_version() -> str:
    """The last migration that there is: the digits in the names of their files."""
    return max(path.name for path in (MIGRATIONS / "versions").glob("v*.py"))[1:5]


def lock_state(folder: Path) -> int:
    """Hold the state folder for this process; the descriptor must stay open. Raises ControllerRunning."""
    privacy.make(folder)
    fd = os.open(folder / "controller.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise ControllerRunning(f"another controller runs on {folder}: stop it, or use another controller.data_dir") from None
    return fd


def remember(connection: Connection, key: str, value: str) -> str:
    """The value kept under `key`; the first one wins."""
    found = connection.execute(select(schema.meta.c.value).where(schema.meta.c.key == key)).scalar()
    if found is not None:
        return str(found)
    connection.execute(insert(schema.meta).values(key=key, value=value))
    return value


def new_family(engine: Engine) -> str:
    """The controller family of this database: made once, never changed."""
    with engine.begin() as connection:
        return remember(connection, "family", secrets.token_hex(6))


def become(connection: Connection, family: str) -> None:
    """The database is that family's from now on; who calls this has seen that it has no jobs of another one."""
    connection.execute(delete(schema.meta).where(schema.meta.c.key == "family"))
    remember(connection, "family", family)
