"""`spotsurfer backup`: a consistent copy of a controller's irreplaceable files, in one encrypted file.

The controller may run meanwhile.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from spotsurfer import __version__
from spotsurfer.config.settings import Settings
from spotsurfer.model.errors import DISK_FULL, ConfigError, Conflict, Denied, InputMissing, UsageError
from spotsurfer.state import db
from spotsurfer.store import master_key

# ---- File format: a header that anybody can read and nobody can change, and a content that only the passphrase opens.
#
# SSBACKUP          8 bytes
# length            of the header, 4 bytes, little endian
# header            JSON: the form, the derivation of the key from the passphrase, and the writer's facts about the content
# checksum          SHA-256 of all before it; tells damage from a wrong passphrase. So far every form is the same
# tag               16 bytes: AES-256-GCM of nothing, piece 0
# pieces            AES-256-GCM of 1 MiB each, the last one shorter, pieces 1, 2, …
#
# The key is scrypt of the passphrase with a salt of its own. Each file thus has another key, and the number of a piece can be
# its nonce. The checksum is the associated data of each piece, and the header has the length of the content: nobody can change,
# leave out, move or exchange pieces.

MAGIC = b"SSBACKUP"
FORM = 1
PIECE_BYTES = 1 << 20
TAG_BYTES, SALT_BYTES, KEY_BYTES, SUM_BYTES = 16, 32, 32, 32
HEADER_BYTES_MAX = 1 << 20
# Cost of a guess: 2 ** 17 blocks of 1 KiB, 128 MiB of memory and a third of a second, as OWASP advises. A file may ask for
# eight times as much, not for all memory.
SCRYPT_LOG_N, SCRYPT_LOG_N_MAX, SCRYPT_R, SCRYPT_P = 17, 20, 8, 1


class Writer:
    """Seals a content of `size` bytes into `out`."""

    def __init__(self, out: BinaryIO, passphrase: str, about: Mapping[str, Any], size: int) -> None:
        """`about`: the header's facts about the content, as JSON has them."""
        salt = secrets.token_bytes(SALT_BYTES)
        key = {"scrypt_log_n": SCRYPT_LOG_N, "salt": salt.hex()}
        text = json.dumps({"form": FORM, **key, "bytes": size, "about": about}, sort_keys=True).encode()
        begin = MAGIC + len(text).to_bytes(4, "little") + text
        self._cipher = _cipher(passphrase, salt, SCRYPT_LOG_N)
        self._sum = hashlib.sha256(begin).digest()
        self._out, self._left, self._number = out, size, 1
        self._rest = bytearray()
        out.write(begin + self._sum + self._cipher.encrypt(_nonce(0), b"", self._sum))

    def write(self, data: bytes) -> None:
        """Seal the next bytes of the content. Raises ValueError if they exceed `size`."""
        self._left -= len(data)
        if self._left < 0:
            raise ValueError("more bytes came than were announced")
        self._rest += data
        while len(self._rest) >= PIECE_BYTES or (self._rest and self._left == 0):
            self._out.write(self._cipher.encrypt(_nonce(self._number), bytes(self._rest[:PIECE_BYTES]), self._sum))
            self._number += 1
            del self._rest[:PIECE_BYTES]

    def close(self) -> None:
        """Finish. Raises ValueError if bytes are missing."""
        if self._left:
            raise ValueError(f"{self._left} bytes are missing of those that were announced")


class Reader:
    """Opens a file. `about` are the writer's authentic facts about the content."""

    def __init__(self, file: BinaryIO, name: str, passphrase: str) -> None:
        """`name` is the file's, for messages.

        Raises InputMissing for another kind of file, a damaged, truncated or newer one; Denied for a wrong passphrase.
        """
        self._file, self._name = file, name
        header, self._sum = self._header()
        self.about, self.size = header.about, header.size
        self._left, self._number, self._rest = self.size, 1, b""
        self._check_length()
        self._cipher = _cipher(passphrase, header.salt, header.log_n)
        try:
            self._cipher.decrypt(_nonce(0), file.read(TAG_BYTES), self._sum)
        except InvalidTag:
            raise Denied(f"The passphrase does not open {name}: take the one that it was made with.") from None

    def read(self, count: int) -> bytes:
        """The next `count` bytes of the content, fewer at its end. Raises InputMissing for damage."""
        while len(self._rest) < count and self._left:
            size = min(PIECE_BYTES, self._left)
            try:
                piece = self._cipher.decrypt(_nonce(self._number), self._file.read(size + TAG_BYTES), self._sum)
            except InvalidTag:
                raise _damaged(self._name, f"piece {self._number} was changed") from None
            self._rest += piece
            self._left, self._number = self._left - size, self._number + 1
        data, self._rest = self._rest[:count], self._rest[count:]
        return data

    def _header(self) -> tuple[_Header, bytes]:
        begin = self._file.read(len(MAGIC) + 4)
        if begin[: len(MAGIC)] != MAGIC[: len(begin)] or not begin:
            raise InputMissing(f"{self._name} is no backup of spotsurfer: name a file that `spotsurfer backup` wrote.")
        length = int.from_bytes(begin[len(MAGIC) :], "little")
        if length > HEADER_BYTES_MAX:
            raise _damaged(self._name, "its header was changed")
        text, checksum = self._file.read(length), self._file.read(SUM_BYTES)
        if len(checksum) < SUM_BYTES:
            raise _damaged(self._name, "it is cut off in its header")
        if hashlib.sha256(begin + text).digest() != checksum:
            raise _damaged(self._name, "its header was changed")
        return _parsed(text, self._name), checksum

    def _check_length(self) -> None:
        pieces = -(-self.size // PIECE_BYTES)
        whole = self._file.tell() + TAG_BYTES + self.size + pieces * TAG_BYTES
        there = os.fstat(self._file.fileno()).st_size
        if there < whole:
            raise _damaged(self._name, f"it is cut off: {there} of {whole} bytes are there")
        if there > whole:
            raise _damaged(self._name, f"{there - whole} bytes follow its end")


@dataclass(frozen=True, slots=True)
class _Header:
    about: dict[str, Any]
    size: int
    salt: bytes
    log_n: int


def _parsed(text: bytes, name: str) -> _Header:
    """Not trustworthy yet: an attacker who replaces the file can also write a right checksum."""
    try:
        raw: dict[str, Any] = json.loads(text)
        if int(raw["form"]) > FORM:
            by = str(raw["about"]["spotsurfer"])
            raise InputMissing(
                f"{name} was written by spotsurfer {by} in a newer form than this version reads: restore it with that one."
            )
        header = _Header(dict(raw["about"]), int(raw["bytes"]), bytes.fromhex(raw["salt"]), int(raw["scrypt_log_n"]))
    except (ValueError, KeyError, TypeError):
        raise _damaged(name, "its header was changed") from None
    if not (1 <= header.log_n <= SCRYPT_LOG_N_MAX and header.size >= 0):
        raise _damaged(name, "its header was changed")
    return header


def _damaged(name: str, what: str) -> InputMissing:
    return InputMissing(f"{name} is damaged ({what}): take another copy of it. Nothing was restored.")


def _cipher(passphrase: str, salt: bytes, log_n: int) -> AESGCM:
    return AESGCM(Scrypt(salt, KEY_BYTES, 2**log_n, SCRYPT_R, SCRYPT_P).derive(passphrase.encode()))


def _nonce(number: int) -> bytes:
    return number.to_bytes(12, "big")


# ---- Contents: the files of a controller that nobody can make again.

DATABASE, KEY, TOKEN = "state.db", "store.key", "token"
READ_BYTES = 1 << 20


def places(settings: Settings) -> dict[str, Path]:
    """This configuration's path of each file, in the order of a restore: the last one completes it."""
    return {KEY: settings.key_path, TOKEN: settings.token_path, DATABASE: settings.controller.data_dir / DATABASE}


@contextmanager
def refusals_told() -> Iterator[None]:
    """Raises ConfigError, with the remedy, if the system refuses access to one of the controller's files inside the block."""
    try:
        yield
    except OSError as e:
        if e.filename is None or e.errno in DISK_FULL:  # without a name it concerns no file, but for example a pipe
            raise
        why = f"{e.filename} can't be used ({e.strerror})"
        raise ConfigError(f"{why}: call it as the user that the controller runs as, or as root.") from e


@dataclass(frozen=True, slots=True)
class Member:
    """One file of a backup."""

    name: str
    size: int  # bytes
    sha256: str


@dataclass(frozen=True, slots=True)
class About:
    """Facts in a backup's header: readable without the passphrase, so free of secrets."""

    made_at: str  # ISO time
    spotsurfer: str  # version that made it
    schema: str  # last migration of the database
    family: str  # of the controllers
    key: str  # fingerprint of store.key
    store_url: str
    jobs: int
    members: tuple[Member, ...]  # in the order of the content

    @classmethod
    def of(cls, raw: dict[str, Any]) -> About:
        """From the authentic header. Ignores additions of a newer version of the same form."""
        members = tuple(Member(m["name"], m["size"], m["sha256"]) for m in raw["members"])
        return cls(**{k: raw[k] for k in cls.__dataclass_fields__ if k != "members"}, members=members)


COPY = ".backup"  # private folder in the data folder for the plain copy of the database, while it is sealed
Progress = Callable[[str, int, int], None]  # stage, bytes done, total


def back_up(settings: Settings, to: Path, passphrase: str, now: datetime, progress: Progress, force: bool = False) -> About:
    """Write the file, whole or not at all, mode 0600; returns its facts.

    Raises UsageError if the file exists already (unless `force`), is no plain file or can't be written; ConfigError if this
    configuration has no controller's data or they can't be read; Conflict during another backup; DiskFull; SpotsurferError
    for a damaged database.
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
    """The backup may replace another backup, never a folder, a link or a device."""
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
    """A temporary copy of the database. It overwrites the remains of a killed backup."""
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
        db.copy_database(database, copy, lambda: progress("copying the database", 0, 0))
        yield copy


def _about(settings: Settings, files: dict[str, Path], now: datetime) -> About:
    found, key = db.look_read_only(files[DATABASE]), settings.key_path
    if found.family is None or found.schema is None or not key.is_file():
        lack = f"the store's key {key} is" if found.family is not None and found.schema is not None else "its family is"
        raise ConfigError(f"{lack} not there yet: start the controller once, then there is something to back up.")
    return About(
        made_at=now.isoformat(),
        spotsurfer=__version__,
        schema=found.schema,
        family=found.family,
        key=master_key.load(key).fingerprint,
        store_url=settings.store_url,
        jobs=found.jobs,
        members=tuple(_member(name, path) for name, path in files.items()),
    )


def _member(name: str, path: Path) -> Member:
    with path.open("rb") as file:
        return Member(name, path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def _write(to: Path, passphrase: str, about: About, files: dict[str, Path], progress: Progress) -> None:
    """Writes under another name first: a truncated backup never has the final name."""
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
    """Make the names in the folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
