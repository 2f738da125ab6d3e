"""An encrypted file: a header that anybody can read and nobody can change, and a content that only the passphrase opens.

    SSBACKUP          8 bytes
    length            of the header, 4 bytes, little endian
    header            JSON: the form, how the key is made of the passphrase, and what the writer says of the content
    checksum          SHA-256 of all before it; tells damage from a wrong passphrase. So far every form is the same
    tag               16 bytes: AES-256-GCM of nothing, piece 0
    pieces            AES-256-GCM of 1 MiB each, the last one of what is left, pieces 1, 2, …

The key is scrypt of the passphrase with a salt of its own, so each file has another key, and the number of a piece may be its
nonce. The checksum is the associated data of each piece, and the header says how long the content is: no piece can be changed,
left out, moved or taken over from another file.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from spotsurfer.model.errors import Denied, InputMissing

MAGIC = b"SSBACKUP"
FORM = 1
PIECE_BYTES = 1 << 20
TAG_BYTES, SALT_BYTES, KEY_BYTES, SUM_BYTES = 16, 32, 32, 32
HEADER_BYTES_MAX = 1 << 20
# Cost of a guess: 2 ** 17 blocks of 1 KiB, 128 MiB of memory and a third of a second, as OWASP advises. A file may ask for
# eight times as much, not for all memory that there is.
SCRYPT_LOG_N, SCRYPT_LOG_N_MAX, SCRYPT_R, SCRYPT_P = 17, 20, 8, 1


class Writer:
    """Seals a content of `size` bytes into `out`."""

    def __init__(self, out: BinaryIO, passphrase: str, about: Mapping[str, Any], size: int) -> None:
        """`about`: what the header tells of the content, as JSON has it."""
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
        """The next bytes of the content. Raises ValueError where there are more than was said."""
        self._left -= len(data)
        if self._left < 0:
            raise ValueError("more bytes came than were announced")
        self._rest += data
        while len(self._rest) >= PIECE_BYTES or (self._rest and self._left == 0):
            self._out.write(self._cipher.encrypt(_nonce(self._number), bytes(self._rest[:PIECE_BYTES]), self._sum))
            self._number += 1
            del self._rest[:PIECE_BYTES]

    def close(self) -> None:
        """All of it was written. Raises ValueError where some is missing."""
        if self._left:
            raise ValueError(f"{self._left} bytes are missing of those that were announced")


class Reader:
    """Opens a file. `about` is what its writer said of the content; nobody changed it."""

    def __init__(self, file: BinaryIO, name: str, passphrase: str) -> None:
        """`name` is the file's, for messages.

        Raises InputMissing for what is no such file, is damaged, cut off or of a newer form, Denied for a wrong passphrase.
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
        """So many bytes of the content, less at its end. Raises InputMissing for damage."""
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
    """Nobody vouches for it yet: whoever can replace the file can write a right checksum, too."""
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
