"""`spotsurfer backup`: a consistent copy of what a controller can't make again, in one encrypted file. It may be running."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

from spotsurfer import __version__, storekey
from spotsurfer.model.errors import DISK_FULL, ConfigError, Conflict, UsageError
from spotsurfer.recovery.contents import DATABASE, READ_BYTES, About, Member, places, refusals_told
from spotsurfer.recovery.envelope import Writer
from spotsurfer.settings import Settings
from spotsurfer.state import peek

COPY = ".backup"  # folder in the data folder, which is closed to others: the copy of the database, in plain, while it is sealed
Progress = Callable[[str, int, int], None]  # what, bytes done, of


def back_up(settings: Settings, to: Path, passphrase: str, now: datetime, progress: Progress, force: bool = False) -> About:
    """Write the file, whole or not at all, mode 0600; what is in it.

    Raises UsageError if the file is there already (unless `force`), is no plain file or can't be written; ConfigError if this
    configuration has no controller's data or they can't be read; Conflict while another backup is made; DiskFull;
    SpotsurferError for a database that is damaged.
    """
    _check_target(to, force)
    there = places(settings)
    with refusals_told():
        if not there[DATABASE].is_file():
            remedy = "name the controller's own configuration with --config, and call it as its user"
            raise ConfigError(f"{there[DATABASE]} is not there: {remedy}.")
        with _copied(settings.controller.data_dir, there[DATABASE], progress) as copy:
            files = {name: copy if name == DATABASE else path for name, path in there.items() if path.exists()}
            about = _about(settings, files, now)
            _write(to, passphrase, about, files, progress)
    return about


def _check_target(to: Path, force: bool) -> None:
    """The backup takes the place of what is there: of another backup, never of a folder, a link or a device."""
    try:
        there = to.lstat()
    except FileNotFoundError:
        return
    except OSError as e:
        raise _unwritable(to, e) from e
    if not stat.S_ISREG(there.st_mode):
        raise UsageError(f"{to} is there already and is no plain file: name another file after --to.")
    if not force:
        raise UsageError(f"{to} is there already: name another file, or overwrite it with --force.")


def _unwritable(to: Path, error: OSError) -> UsageError:
    return UsageError(f"{to} can't be written ({error.strerror}): name another file after --to.")


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
    except OSError as e:
        if e.errno in DISK_FULL or isinstance(e, BrokenPipeError):
            raise
        raise _unwritable(to, e) from e
    finally:
        part.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Names in it are durable when it returns."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
