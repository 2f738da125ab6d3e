"""The manifest, the object whose existence makes a checkpoint, with the tables that map bytes of files to bytes of chunks.

It is written after every chunk and before the head entry. Its bytes: a mark, a letter that tells whether the rest is encrypted,
zstd of JSON, and a keyed seal over all of it. The reader checks the seal before it looks at anything else: write access to the
store is not enough to make a job run foreign data.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hmac
import json
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import blake3
import numpy as np
import numpy.typing as npt
import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from spotsurfer_wire import json_codec, object_keys
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.json_codec import ProtocolError
from spotsurfer_wire.messages import StepRun
from spotsurfer_wire.store.port import ObjectStore

# ---- Extents: which bytes of a file are which bytes of which chunk, as plain numbers, for an image may have 100,000s of rows

COLUMNS = 4
ROW_BYTES = 8 * COLUMNS


class Extent(NamedTuple):
    """file[offset:offset+length] = plain(chunks[chunk])[skip:skip+length]."""

    offset: int
    length: int
    chunk: int
    skip: int


class Extents:
    """Extents of one file, sorted by offset, never overlapping; what lies between them is zeros. Immutable by agreement."""

    __slots__ = ("rows",)

    def __init__(self, rows: array[int] | None = None) -> None:
        self.rows: array[int] = array("Q") if rows is None else rows

    @classmethod
    def of(cls, extents: Iterable[tuple[int, int, int, int]]) -> Extents:
        """From extents in any order; neighbours that continue each other become one."""
        rows = np.array(sorted(extents), dtype=np.uint64).reshape(-1, COLUMNS)
        return cls.of_table(rows)

    @classmethod
    def of_table(cls, rows: npt.NDArray[np.uint64]) -> Extents:
        """From rows of four numbers that are sorted by offset; neighbours that continue each other become one."""
        if len(rows) > 1:
            ends = rows[:, 0] + rows[:, 1]
            follows = (rows[1:, 0] == ends[:-1]) & (rows[1:, 2] == rows[:-1, 2]) & (rows[1:, 3] == rows[:-1, 3] + rows[:-1, 1])
            first = np.flatnonzero(np.concatenate(([True], ~follows)))
            merged = rows[first].copy()
            merged[:, 1] = np.add.reduceat(rows[:, 1], first)
            rows = merged
        return cls(array("Q", np.ascontiguousarray(rows, dtype=np.uint64).tobytes()))

    @property
    def table(self) -> npt.NDArray[np.uint64]:
        """The rows as an array of shape (n, 4), not to be written to."""
        return np.frombuffer(self.rows, dtype=np.uint64).reshape(-1, COLUMNS)

    @property
    def bytes(self) -> int:
        """Bytes of the file that are not left out as zeros."""
        return int(self.table[:, 1].sum())

    def chunks(self) -> list[int]:
        """Which chunks are referred to: each once, in ascending order."""
        return [int(x) for x in np.unique(self.table[:, 2])]

    def moved(self, places: Sequence[int] | dict[int, int]) -> Extents:
        """The same extents for another table: chunk i of the old one is `places[i]` of the new one."""
        rows = self.table.copy()
        used, inverse = np.unique(rows[:, 2], return_inverse=True)
        rows[:, 2] = np.array([places[int(x)] for x in used], dtype=np.uint64)[inverse]
        return Extents.of_table(rows)

    def validate(self, size: int, sizes: npt.NDArray[np.uint64]) -> None:
        """Raises ProtocolError for extents that no writer makes. `size`: of the file; `sizes`: of the chunks of the table."""
        if not self.rows:
            return
        rows, whole = self.table, np.uint64(size)
        offset, length, chunk, skip = rows.T
        if (chunk >= len(sizes)).any():
            raise ProtocolError("an extent refers to a chunk that the manifest does not list")
        of_chunk = sizes[chunk]
        # Subtractions only if they can't wrap: a sum of two hostile numbers could.
        inside = (length > 0) & (offset < whole) & (skip < of_chunk)
        if not inside.all() or (length > whole - offset).any() or (length > of_chunk - skip).any():
            raise ProtocolError("an extent lies outside of its file or of its chunk")
        if (offset[1:] < offset[:-1] + length[:-1]).any():
            raise ProtocolError("extents of a file overlap or are not in order")

    def to_wire(self) -> str:
        """Base64 of little-endian numbers: so has every machine that we run on."""
        return base64.b64encode(self.rows).decode("ascii")

    @classmethod
    def from_wire(cls, text: object) -> Extents:
        """The reverse; raises ProtocolError."""
        try:
            data = base64.b64decode(text if isinstance(text, str) else "?", validate=True)
        except (binascii.Error, ValueError) as e:
            raise ProtocolError(f"extents are not base64: {e}") from e
        if len(data) % ROW_BYTES:
            raise ProtocolError("extents are not rows of four numbers")
        return cls(array("Q", data))

    def __iter__(self) -> Iterator[Extent]:
        return (Extent(*row) for row in self.table.tolist())

    def __len__(self) -> int:
        return len(self.rows) // COLUMNS

    def __getitem__(self, at: int) -> Extent:
        return Extent(*self.table[at].tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Extents) and self.rows == other.rows

    def __hash__(self) -> int:
        return hash(self.rows.tobytes())

    def __repr__(self) -> str:
        return f"Extents({list(self) if len(self) < 5 else len(self)})"

    def __deepcopy__(self, memo: object) -> Extents:
        return self


MANIFEST_BYTES_MAX = 256 << 20  # a limit on what a hostile or torn object may unpack to
CHUNK_BYTES_MAX = 16 << 20  # what a reader accepts from any writer
PACK_BYTES_MAX = 64 << 20
MARK, PLAIN, SECRET = b"SSM3", b"p", b"e"
SEAL_BYTES, NONCE_BYTES = 32, 12
_COUNTS_END = 1 << 63  # what the kernel takes for a size or an offset
_NUMBERS_END = 1 << 64  # of inodes
_TIMES_END = _COUNTS_END * 10**9  # the same for seconds, in nanoseconds
_NO_ID = (1 << 32) - 1  # to chown(2) it means "leave as it is"
HELD, KNOWN = 1, 2  # a process had the file open; and it fails if the file gets another number
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Stored:
    """One chunk in the store. `digest` is its name, made of its plain bytes (`chunks.codec.digest`)."""

    digest: str
    size: int  # plain bytes
    pack: str = ""  # name of the object that holds it among others; "" = it is an object of its own
    at: int = 0  # in a pack: where its stored form begins
    length: int = 0  # in a pack: bytes of its stored form


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of an image or of the scratch tree. `path` is relative and never leaves its root."""

    path: str
    kind: str  # "file" | "dir" | "symlink" | "hardlink" | "fifo"
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    size: int = 0
    target: str = ""  # of a symlink, or the path a hardlink repeats
    xattrs: dict[str, str] = field(default_factory=dict)  # values in base64
    extents: Extents = field(default_factory=Extents)
    inode: int = 0  # its number; 0 = not known
    position: int = 0  # in its folder, if a process was listing that; 0 = any
    held: int = 0  # `HELD`, `KNOWN`; 0 = no process had it open


# What a checkpoint has of a file on a shared file system.
GROWS = "grows"  # it is only appended to: its length, and digests of its ends
KEPT = "kept"  # its content
UNKEPT = "unkept"  # it is rewritten in place and was too large to keep: its length and time


@dataclass(frozen=True, slots=True)
class Shared:
    """A file on a shared file system that the job had open for writing. `entry.path` begins with the name of the mount."""

    entry: Entry
    way: str  # `GROWS`, `KEPT` or `UNKEPT`
    head: str = ""  # digest of its first block, if it grows; see `files.shared_files.ends`
    tail: str = ""  # of the last block before `entry.size`


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checkpoint, complete: what the engine dumped, the scratch tree and the log positions of the same instant."""

    id: str
    job: str
    epoch: int
    sequence: int
    kind: str  # "live" | "final"
    engine: str
    facts: dict[str, str]  # of the machine: compared before a restore; a refusal names both values
    image: list[Entry]
    scratch: list[Entry]
    log: dict[str, int]  # stream -> bytes of output contained
    init_pipes: dict[str, str]  # stream -> the name CRIU knows the shim's pipe by
    cpu_seconds: float  # of the job's work contained, all attempts
    frozen_seconds: float
    image_bytes: int
    at: str
    base: str | None = None
    chunks: list[Stored] = field(default_factory=list)  # what the extents' chunk numbers mean
    lineage: str = ""  # job whose keys name and seal the chunks; "" = the job itself
    steps: list[StepRun] = field(default_factory=list)  # of the job that began, the newest is the one it goes on in
    shared: list[Shared] = field(default_factory=list)  # files on shared file systems that it had open for writing

    @property
    def memory_bytes(self) -> int:
        """Memory of the image that needs room on the machine that restores it."""
        return sum(e.extents.bytes for e in self.image)

    def entries(self) -> list[Entry]:
        """All files, those of the image first."""
        return [*self.image, *self.scratch, *(x.entry for x in self.shared)]


def encode(manifest: Manifest, keys: Keys) -> bytes:
    """Bytes of the object, sealed; encrypted if the keys require it."""
    raw = json_codec.plain(dataclasses.replace(manifest, chunks=[]))
    raw["chunks"] = _columns(manifest.chunks)
    text = json.dumps(raw, sort_keys=True, default=Extents.to_wire).encode()
    body, form = zstandard.ZstdCompressor(level=3).compress(text), PLAIN
    if keys.encrypts:
        nonce = os.urandom(NONCE_BYTES)
        body, form = nonce + AESGCM(keys.cipher).encrypt(nonce, body, MARK), SECRET
    data = MARK + form + body
    return data + _seal(data, keys)


def stored(store: ObjectStore, job: str, checkpoint: str) -> bytes | None:
    """The bytes of a manifest in the store, unchecked; None if there is none. Raises StoreError, ProtocolError (too large)."""
    return json_codec.read_bounded(store, object_keys.manifest_key(job, checkpoint), MANIFEST_BYTES_MAX)


def decode(data: bytes, keys: Keys, job: str, checkpoint: str | None = None) -> Manifest:
    """The manifest from bytes, checked; raises ProtocolError for anything forged, damaged or from a newer version.

    `job`, `checkpoint`: what it must belong to. The seal alone does not distinguish it from a manifest of another job of the
    same lineage, nor from an older one of the same job.
    """
    body, seal = data[:-SEAL_BYTES], data[-SEAL_BYTES:]
    if not hmac.compare_digest(_seal(body, keys), seal):
        raise ProtocolError("the manifest was not written with this job's key, or was changed or cut off since: it is not used")
    image = _decoded(body, keys)
    if image.job != job:
        raise ProtocolError(f"the store gave a manifest of job {image.job} for one of {job}: it is not used")
    if checkpoint not in (None, image.id):
        raise ProtocolError(f"the store gave the manifest of checkpoint {image.id} for that of {checkpoint}: it is not used")
    return image


def _seal(data: bytes, keys: Keys) -> bytes:
    return blake3.blake3(data, key=keys.seal).digest()


def _decoded(data: bytes, keys: Keys) -> Manifest:
    mark, form, body = data[: len(MARK)], data[len(MARK) : len(MARK) + 1], data[len(MARK) + 1 :]
    if mark != MARK:
        forms = f"form {mark.decode(errors='replace')!r}, and this spotsurfer knows {MARK.decode()!r} alone"
        raise ProtocolError(f"the manifest is of {forms}: go on with the one that wrote it")
    try:
        if form == SECRET:
            body = _opened(body, keys)
        text = zstandard.ZstdDecompressor().decompress(body, max_output_size=MANIFEST_BYTES_MAX)
        raw = json_codec.parse("the manifest", text, sealed=True)
    except (zstandard.ZstdError, ValueError, InvalidTag) as e:
        raise ProtocolError(f"the manifest is damaged: {e}") from e
    table = _table(raw.pop("chunks", None) if isinstance(raw, dict) else None)
    image = dataclasses.replace(json_codec.from_plain(Manifest, raw), chunks=table)
    check(image)
    return image


def _opened(body: bytes, keys: Keys) -> bytes:
    return AESGCM(keys.cipher).decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], MARK)


def is_digest(text: str) -> bool:
    """Whether a name from a manifest may be used as one."""
    return _DIGEST.fullmatch(text) is not None


def sizes(table: list[Stored]) -> npt.NDArray[np.uint64]:
    """Plain bytes of each chunk, for `Extents.validate`."""
    return np.array([c.size for c in table], dtype=np.uint64)


def check(image: Manifest) -> None:
    """Raises ProtocolError for numbers, chunks and extents that no writer makes."""
    counts = {"epoch": image.epoch, "sequence": image.sequence, "image_bytes": image.image_bytes, **image.log}
    if wrong := [f"{name} {n}" for name, n in counts.items() if not 0 <= n < _COUNTS_END]:
        raise ProtocolError(f"the manifest says {wrong[0]}")
    for c in image.chunks:
        check_stored(c)
    known = sizes(image.chunks)
    for e in image.entries():
        _check_numbers(e)
        e.extents.validate(e.size, known)


def _check_numbers(e: Entry) -> None:
    """Without a loop, because an image may have hundreds of thousands of files."""
    owned = 0 <= e.mode < 1 << 32 and 0 <= e.uid < _NO_ID and 0 <= e.gid < _NO_ID
    known = 0 <= e.inode < _NUMBERS_END and 0 <= e.position < _COUNTS_END
    if not (owned and known and 0 <= e.size < _COUNTS_END and -_TIMES_END < e.mtime_ns < _TIMES_END):
        raise ProtocolError(f"{e.path!r} is said to have a mode, owner, number, position, size or time that no file has")


def check_stored(c: Stored) -> None:
    """Raises ProtocolError for a chunk that no writer makes."""
    if not is_digest(c.digest) or (c.pack and not is_digest(c.pack)):
        raise ProtocolError(f"chunk name {c.digest!r} or pack name {c.pack!r} is not a digest")
    if not 0 < c.size <= CHUNK_BYTES_MAX:
        raise ProtocolError(f"chunk {c.digest} is said to have {c.size} bytes")
    if c.pack and not (0 < c.length <= PACK_BYTES_MAX and 0 <= c.at <= PACK_BYTES_MAX - c.length):
        raise ProtocolError(f"chunk {c.digest} is said to lie outside of its pack")


def live_bytes(image: Manifest) -> list[int]:
    """How many bytes of each chunk of the table the checkpoint refers to; a byte that is used twice counts twice."""
    out = np.zeros(len(image.chunks), dtype=np.uint64)
    for e in image.entries():
        rows = e.extents.table
        np.add.at(out, rows[:, 2], rows[:, 1])
    return [int(x) for x in out]


def _columns(table: list[Stored]) -> dict[str, Any]:
    """Columns instead of objects: a fifth of the time and of the bytes."""
    packs = {name: i for i, name in enumerate(sorted({c.pack for c in table}))}
    rows = array("Q")
    for c in table:
        rows.extend((c.size, packs[c.pack], c.at, c.length))
    return {"digests": "".join(c.digest for c in table), "packs": list(packs), "rows": Extents(rows).to_wire()}


def _table(raw: object) -> list[Stored]:
    if not isinstance(raw, dict):
        raise ProtocolError("the manifest has no table of chunks")
    digests, packs = raw.get("digests"), raw.get("packs")
    rows = Extents.from_wire(raw.get("rows")).table.tolist()
    if not isinstance(digests, str) or not isinstance(packs, list) or len(digests) != 64 * len(rows):
        raise ProtocolError("the manifest's table of chunks is not whole")
    try:
        names = (digests[i : i + 64] for i in range(0, len(digests), 64))
        return [Stored(name, size, str(packs[p]), at, length) for name, (size, p, at, length) in zip(names, rows, strict=True)]
    except IndexError as e:
        raise ProtocolError("the manifest's table of chunks names a pack that it does not list") from e
