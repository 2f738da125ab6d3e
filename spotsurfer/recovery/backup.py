"""`spotsurfer backup`: a consistent copy of what a controller can't make again, in one encrypted file. It may be running."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

from spotsurfer import __version__, storekey
from spotsurfer.model.errors import ConfigError, Conflict, UsageError
from spotsurfer.recovery.contents import DATABASE, READ_BYTES, About, Member, places
from spotsurfer.recovery.envelope import Writer
from spotsurfer.settings import Settings
from spotsurfer.state import peek

COPY = ".backup"  # folder in the data folder, which is closed to others: the copy of the database, in plain, while it is sealed
Progress = Callable[[str, int, int], None]  # what, bytes done, of


def back_up(settings: Settings, to: Path, passphrase: str, now: datetime, progress: Progress, force: bool = False) -> About:
    """Write the file, whole or not at all, mode 0600; what is in it.

    Raises UsageError where the file is there already (unless `force`) or can't be written, ConfigError where this
    configuration has no controller's data, Conflict while another backup is made, DiskFull, SpotsurferError for a database
    that is damaged.
    """
    if to.is_dir() or (to.exists() and not force):
        raise UsageError(f"{to} is there already: name another file, or overwrite it with --force.")
    there = places(settings)
    if not there[DATABASE].is_file():
        raise ConfigError(
            f"{there[DATABASE]} is not there: name the controller's own configuration with --config, and call it as its user."
        )
    try:
        with _copied(settings.controller.data_dir, there[DATABASE], progress) as copy:
            files = {name: copy if name == DATABASE else path for name, path in there.items() if path.exists()}
            about = _about(settings, files, now)
            _write(to, passphrase, about, files, progress)
    except PermissionError as e:
        raise ConfigError(f"{e.filename} can't be read: call it as the user that the controller runs as, or as root.") from e
    return about


@contextmanager
def _copied(folder: Path, database: Path, progress: Progress) -> Iterator[Path]:
    """A copy of the database for a while. What a killed backup left is written over by the next one."""
    place = folder / COPY
    place.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as stack:
        lock = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"Another backup of {folder} is under way: wait until it is done.") from None
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        copy = place / DATABASE
        copy.unlink(missing_ok=True)
        copy.touch(mode=0o600)
        peek.copy(database, copy, lambda: progress("copying the database", 0, 0))
        yield copy


def _about(settings: Settings, files: dict[str, Path], now: datetime) -> About:
    found, key = peek.look(files[DATABASE]), settings.key_path
    if found.family is None or found.schema is None or not key.is_file():
        lack = f"the store's key {key} is" if found.family is not None and found.schema is not None else "its family is"
        raise ConfigError(f"{lack} not there yet: start the controller once, then there is something to back up.")
    return About(
        made_at=now.isoformat(),
        spotsurfer=__version__,
        schema=found.schema,
        family=found.family,
        key=storekey.load(key).fingerprint,
        store_url=settings.store_url,
        jobs=found.jobs,
        members=tuple(_member(name, path) for name, path in files.items()),
    )


def _member(name: str, path: Path) -> Member:
    with path.open("rb") as file:
        return Member(name, path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def _write(to: Path, passphrase: str, about: About, files: dict[str, Path], progress: Progress) -> None:
    """Under another name first: a backup that was cut off never has the name of a whole one."""
    part = to.with_name(f".{to.name}.{secrets.token_hex(4)}")
    total, done = sum(m.size for m in about.members), 0
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            writer = Writer(out, passphrase, dataclasses.asdict(about), total)
            for member in about.members:
                with files[member.name].open("rb") as file:
                    while data := file.read(READ_BYTES):
                        writer.write(data)
                        done += len(data)
                        progress("encrypting", done, total)
            writer.close()
            out.flush()
            os.fsync(out.fileno())
        part.replace(to)
        sync_folder(to.parent)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as e:
        raise UsageError(f"{to} can't be written ({e.strerror}): name another file after --to.") from e
    finally:
        part.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Names in it are durable when it returns."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
