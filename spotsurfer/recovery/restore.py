"""`spotsurfer restore`: a backup becomes a data folder, whole or not at all.

Its content is checked in a folder of its own. The restore counts once that folder has its final name: if a process is killed
after that, the next `restore` or `serve` puts the files into their places.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from spotsurfer.common.units import counted
from spotsurfer.config.settings import Settings
from spotsurfer.model.errors import Conflict, InputMissing, SpotsurferError
from spotsurfer.recovery.backup import (
    DATABASE,
    KEY,
    READ_BYTES,
    TOKEN,
    About,
    Member,
    Progress,
    Reader,
    places,
    refusals_told,
    sync_folder,
)
from spotsurfer.state import db
from spotsurfer.state.db import lock_state, newest_version
from spotsurfer.store import master_key

OPENED, COMPLETE = ".restore", ".restored"  # folders in the data folder: being filled; complete, to be put into place


@dataclass(frozen=True, slots=True)
class Restored:
    """The outcome."""

    about: About
    kept_token: bool  # another token existed already, and stays


@refusals_told()
def restore(settings: Settings, file: Path, passphrase: str, progress: Progress) -> Restored:
    """Put the backup's files into the paths of this configuration.

    Raises InputMissing for an absent, damaged or too new file, Denied for a wrong passphrase, ControllerRunning, Conflict if
    a database with jobs or another key exists, ConfigError if a path can't be written.
    """
    with file.open("rb") as opened:
        reader = Reader(opened, str(file), passphrase)
        about = About.of(reader.about)
        if about.schema > newest_version():
            raise InputMissing(
                f"{file} was made by spotsurfer {about.spotsurfer}, with a newer database than this version knows (schema "
                f"{about.schema}, here {newest_version()}): install that version."
            )
        return _restore(settings, reader, about, progress)


def _restore(settings: Settings, reader: Reader, about: About, progress: Progress) -> Restored:
    folder, there = settings.controller.data_dir, places(settings)
    lock = lock_state(folder)
    try:
        finish(settings)
        same = {m.name for m in about.members if _holds(there[m.name], m)}
        if same == {m.name for m in about.members}:  # a restore that was killed at its end, or a second one
            return Restored(about, False)
        _check_places(there, same)
        fresh = folder / OPENED
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        try:
            _open(reader, about, fresh, progress)
            _check(fresh, about)
            kept = there[TOKEN].exists()  # clients have it
            if kept:
                (fresh / TOKEN).unlink(missing_ok=True)
            sync_folder(fresh)
            fresh.rename(folder / COMPLETE)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        sync_folder(folder)
        finish(settings)
        return Restored(about, kept and TOKEN not in same)
    finally:
        os.close(lock)


def finish(settings: Settings) -> bool:
    """Put a complete restore into place; returns whether it found one. Call it only with the data folder's lock held."""
    folder, there = settings.controller.data_dir, places(settings)
    complete = folder / COMPLETE
    if not complete.is_dir():
        return False
    for name, target in there.items():
        if (source := complete / name).exists():
            if name == DATABASE:
                for beside in ("-wal", "-shm"):  # of an empty database: SQLite would play it into the new one
                    target.with_name(target.name + beside).unlink(missing_ok=True)
            _move(source, target)
    shutil.rmtree(complete)
    sync_folder(folder)
    return True


def _move(source: Path, target: Path) -> None:
    """A key or token may have a path elsewhere, even on another file system."""
    if target.parent != source.parent.parent:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        copy = target.with_name(f".{target.name}.restored")
        copy.unlink(missing_ok=True)
        with os.fdopen(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(source.read_bytes())
            out.flush()
            os.fsync(out.fileno())
        copy.replace(target)
        sync_folder(target.parent)
        source.unlink()
    else:
        source.replace(target)
        sync_folder(target.parent)


def _check_places(there: dict[str, Path], same: set[str]) -> None:
    """Refuses to overwrite files that somebody may want back."""
    database, key = there[DATABASE], there[KEY]
    away = "move that file, and those that begin with its name, elsewhere"
    found = db.look_read_only(database, f"If the backup is to count instead, {away}, then restore.")
    if found.jobs:
        raise Conflict(
            f"{database} is there already, with {counted(found.jobs, 'job')}, the last change at {found.newest_at}: "
            f"if the backup is to count instead, {away}."
        )
    if key.exists() and KEY not in same:
        raise Conflict(f"{key} is there already and holds another key than the backup: move it elsewhere, then restore.")


def _holds(path: Path, member: Member) -> bool:
    if not path.is_file() or path.stat().st_size != member.size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == member.sha256


def _open(reader: Reader, about: About, folder: Path, progress: Progress) -> None:
    done = 0
    for member in about.members:
        if member.name not in (DATABASE, KEY, TOKEN):
            raise InputMissing(f"The backup holds {member.name!r}, unknown to this version: restore it with a newer one.")
        left = member.size
        with os.fdopen(os.open(folder / member.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            while left and (data := reader.read(min(READ_BYTES, left))):
                out.write(data)
                left, done = left - len(data), done + len(data)
                progress("decrypting", done, reader.size)
            out.flush()
            os.fsync(out.fileno())


def _check(folder: Path, about: About) -> None:
    """The files fit together: an unusable backup must not look like a usable one."""
    found, key = db.look_read_only(folder / DATABASE), master_key.load(folder / KEY)
    if found.family != about.family or key.fingerprint != about.key:
        raise SpotsurferError("Its database or its key is not the one that the backup's header names: take another backup.")
