"""Which pages and chunks the store holds already: fingerprints of pages, their index, and the base that a save builds on."""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from spotsurfer_wire import json_codec, manifest, object_keys
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.linux.buffers import PAGE, Buffer
from spotsurfer_wire.manifest import Entry, Extents, Manifest, Stored, live_bytes
from spotsurfer_wire.store.port import ObjectStore, StoreError

log = logging.getLogger(__name__)

# ---- Fingerprints: 16 bytes that identify a page, so that nothing else of it must be kept
#
# Pages with equal fingerprints are taken for equal, without a comparison. So nobody may be able to construct two such pages,
# not even the writer of a file that a job reads. A fingerprint is keyed for the lineage: each 16 bytes of the page go through
# AES under one secret key, xxh3 (128 bits) digests the result, and that goes through AES under another key. So the
# fingerprints in the store show which pages are alike, and nothing else.
#
# xxh3 alone would not do. Without a seed everything about it is public, and a page for any fingerprint is quickly made
# (`tests/support/twins.py`). With a secret seed, pages exist that collide with it under one seed in sixty. With a secret for
# each of its words, it would miss some changes once in 2^33, because it multiplies halves of 64-bit words. Behind AES nobody
# chooses the input of xxh3, but only which of its blocks are alike.
#
# Two different random pages have the same fingerprint with a probability of 2^-128, as with any good digest of 128 bits. For
# chosen pages there is no proof, because xxh3 has none; every attack that we could think of stays below 2^-110.

PRINT = 16  # bytes
_PRINTED_BYTES = 64 * PAGE  # at once: this and its AES output fit into a processor's own cache
_KEY = _BLOCK = 16  # bytes, of AES
_WORDS = PAGE // 8
_ONE = np.dtype([("page", np.void, PAGE)])  # with a field, because then numpy returns views, not copies

Pairs = npt.NDArray[np.uint64]  # rows of two: a fingerprint's halves


class Printer:
    """Makes the fingerprints of one lineage's pages. It serves one thread at a time. `secret`: that of `Keys.prints`."""

    def __init__(self, secret: bytes) -> None:
        self._page, self._digest = (
            Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 -- one block at a time is what is wanted
            for key in (secret[:_KEY], secret[_KEY:])
        )
        self._mixed = memoryview(bytearray(_PRINTED_BYTES + _BLOCK))  # the library asks for one more than it fills
        self._pages = np.frombuffer(self._mixed[:_PRINTED_BYTES], dtype=_ONE)

    def of_pages(self, data: memoryview) -> bytes:
        """The fingerprints of pages, one after the other; an incomplete last page is padded with zeros."""
        whole = len(data) - len(data) % PAGE
        pieces = [data[at : min(at + _PRINTED_BYTES, whole)] for at in range(0, whole, _PRINTED_BYTES)]
        if whole < len(data):
            pieces.append(memoryview(bytes(data[whole:]).ljust(PAGE, b"\0")))
        return self._digest.update(b"".join([self._digests(piece) for piece in pieces]))

    def _digests(self, piece: memoryview) -> bytes:
        count = self._page.update_into(piece, self._mixed)
        return b"".join(map(xxhash.xxh3_128_digest, self._pages[: count // PAGE]))  # faster than to slice page by page


def pairs(prints: Buffer) -> Pairs:
    """As numbers."""
    return np.frombuffer(prints, dtype=np.uint64).reshape(-1, 2)


def empty(data: memoryview) -> npt.NDArray[np.bool_]:
    """Which pages hold only zeros, by a look at all their bytes; an incomplete last page counts, too."""
    count = len(data) // PAGE
    words = np.frombuffer(data, dtype=np.uint64, count=count * _WORDS).reshape(-1, _WORDS)
    out = (words[:, 0] | words[:, 170] | words[:, 341] | words[:, 511]) == 0  # most pages with data show it here
    doubtful = np.flatnonzero(out)
    out[doubtful] = np.bitwise_or.reduce(words[doubtful], axis=1) == 0
    return out if len(data) % PAGE == 0 else np.append(out, not any(data[count * PAGE :]))


# ---- Index: which pages of an image the store holds already, with 16 bytes for each page and two numbers for its place
#
# A page of the base that occurs again is not sent, but referred to. Chunks with little data still in use are not offered:
# their pages are sent anew, or an image would depend on many almost empty chunks.

OFFERED_SHARE = 0.5  # of a chunk must be in use, or its pages are written anew
NEW, ZERO = -1, -2  # positions that are none
_MARK = b"SSFP3\n"  # then a line of JSON, a digest of all that follows, fingerprints, places
_PLACE_BYTES = 8
_PIECE_BYTES = 1 << 20

Numbers = npt.NDArray[np.signedinteger[Any]]


def kept_as(name: str) -> str:
    """The name of the fingerprints of a page file in an image, for the saves after a restore.

    Images up to 0.2.0 have `prints-…` instead. Those have no key, so anybody can make pages for them: they are not used.
    """
    return "fingerprints-" + name.removeprefix("pages-")


def is_pages(entry: Entry) -> bool:
    """Whether an image file consists of memory pages."""
    return entry.kind == "file" and is_pages_name(entry.path)


def is_pages_name(name: str) -> bool:
    """Whether CRIU gives files of memory pages this name."""
    return name.startswith("pages-") and name.endswith(".img")


class Index:
    """The pages of one checkpoint. Positions count through all its page files, in the order of their names."""

    def __init__(self, image: Manifest) -> None:
        """Nothing is known of the contents yet: `fill` adds it."""
        self.checkpoint, self.table = image.id, image.chunks
        self.begins: dict[str, int] = {}
        self.lengths: dict[str, int] = {}
        parts, total = list[Numbers](), 0
        for entry in sorted(filter(is_pages, image.image), key=lambda e: e.path):
            self.begins[entry.path], self.lengths[entry.path] = total, entry.size // PAGE
            parts.append(refs(entry.extents, entry.size // PAGE))
            total += entry.size // PAGE
        whole = np.concatenate(parts) if parts else np.empty((0, 2), dtype=np.int64)
        self.refs = whole.astype(np.int32)  # of each page: chunk number (or ZERO), and page within the chunk
        self._prints: Buffer = bytearray(total * PRINT)
        self._withheld = ~_offered(image)[self.refs[:, 0]]
        self._file: mmap.mmap | None = None
        self._lock = threading.Lock()
        self._sorted: tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32]] | None = None

    def __len__(self) -> int:
        return len(self.refs)

    @property
    def prints(self) -> memoryview:
        """All fingerprints; those of pages that are unknown, empty or not offered are zeros."""
        return memoryview(self._prints)

    def _rows(self) -> Pairs:
        return pairs(self._prints)

    def fill(self, name: str, prints: bytes) -> None:
        """Fingerprints of the pages of a file, from its beginning; what lies behind its end is ignored."""
        at = self.begins[name]
        count = min(len(prints) // PRINT, self.lengths[name])
        with self._lock:
            rows = self._rows()[at : at + count]
            rows[:] = pairs(prints)[:count]
            rows[self._withheld[at : at + count]] = 0
            self._sorted = None

    def find(self, wanted: Pairs) -> Numbers:
        """Positions of pages with these fingerprints, NEW if there is none."""
        out = np.full(len(wanted), NEW, dtype=np.int64)
        keys, order = self.prepare()
        if len(keys):
            at = np.minimum(np.searchsorted(keys, wanted[:, 0]), len(keys) - 1)
            place = order[at]
            hit = (self._rows()[place] == wanted).all(axis=1)
            out[hit] = place[hit]
        return out

    def prepare(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int32]]:
        """Prepare `find` before the freeze."""
        with self._lock:
            if self._sorted is None:
                first = self._rows()[:, 0]
                known = np.flatnonzero(first != 0).astype(np.int32)
                order = known[np.argsort(first[known], kind="stable")]
                self._sorted = first[order], order
            return self._sorted

    def rest(self) -> None:
        """Free what `prepare` made, and memory of the mapped tables."""
        with self._lock:
            self._sorted = None
            if self._file is not None:
                self._file.madvise(mmap.MADV_DONTNEED)

    def save(self, path: Path) -> None:
        """Keep the tables in a file, not in memory; a restarted agent finds them there. Call after `fill`. Raises OSError."""
        head = json.dumps({"checkpoint": self.checkpoint, "lengths": self.lengths}).encode()
        head += b" " * (-(len(_MARK) + len(head) + 1) % PRINT)
        places = self.refs.tobytes()
        seal = xxhash.xxh3_128(self._prints)
        seal.update(places)
        fresh = path.with_suffix(".new")
        with fresh.open("wb") as f:
            for part in (_MARK, head, b"\n", seal.digest(), self._prints, places):
                f.write(part)
        self._use(fresh, len(_MARK) + len(head) + 1 + PRINT)
        fresh.replace(path)

    def _use(self, path: Path, at: int) -> None:
        """Map the file from now on, so that the kernel can reclaim that memory. The tables begin at this offset."""
        with path.open("rb") as f:
            self._file = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) if len(self) else None
        if self._file is None:
            return
        count = len(self)
        self._prints = memoryview(self._file)[at : at + count * PRINT]
        self.refs = np.frombuffer(self._file, np.int32, 2 * count, at + count * PRINT).reshape(-1, 2)
        self._withheld = np.empty(0, dtype=np.bool_)

    @staticmethod
    def load(path: Path, image: Manifest) -> Index | None:
        """What was kept for this checkpoint, or None."""
        index = Index(image)
        try:
            with path.open("rb") as f:
                if f.readline() != _MARK or json.loads(f.readline()) != {"checkpoint": image.id, "lengths": index.lengths}:
                    return None
                seal, at, found = f.read(PRINT), f.tell(), xxhash.xxh3_128()
                while piece := f.read(_PIECE_BYTES):
                    found.update(piece)
                if found.digest() != seal or f.tell() != at + len(index) * (PRINT + _PLACE_BYTES):
                    return None
            index._use(path, at)
        except (OSError, ValueError):
            return None
        return index


def refs(extents: Extents, count: int) -> Numbers:
    """For each page of a file: chunk number (ZERO for none) and page within the chunk. Pages cut in pieces have neither."""
    out = np.full((count, 2), ZERO, dtype=np.int64)
    rows = extents.table.astype(np.int64)
    whole = (rows % PAGE)[:, [0, 1, 3]].sum(axis=1) == 0
    for offset, length, _, _ in rows[~whole].tolist():
        out[offset // PAGE : -(-(offset + length) // PAGE), 0] = NEW
    rows = rows[whole]
    lengths = rows[:, 1] // PAGE
    along = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    places = np.repeat(rows[:, 0] // PAGE, lengths) + along
    out[places, 0] = np.repeat(rows[:, 2], lengths)
    out[places, 1] = np.repeat(rows[:, 3] // PAGE, lengths) + along
    return out


def _offered(image: Manifest) -> npt.NDArray[np.bool_]:
    """By chunk number, with ZERO and NEW counted from the end. An empty page is recognized by its bytes, not here."""
    sizes = np.array([c.size for c in image.chunks], dtype=np.float64)
    offered = np.array(live_bytes(image), dtype=np.float64) >= OFFERED_SHARE * sizes
    return np.append(offered, [False, False])


class Follower:
    """Goes through the base beside a stream of pages, and realigns after inserted or removed pages."""

    def __init__(self, base: Index, name: str) -> None:
        self._base, self._at = base, base.begins.get(name, 0)

    def match(self, prints: bytes, empty: npt.NDArray[np.bool_]) -> Numbers:
        """Position in the base of each page: the page of equal content, NEW if it is not at its place, ZERO if it is `empty`.

        `Index.find` may still find a NEW page elsewhere; ask it when the job does not wait.
        """
        count, at = len(prints) // PRINT, self._at
        self._at = at + count
        kept = self._base.prints[at * PRINT : (at + count) * PRINT].tobytes()
        if kept == prints:
            return np.arange(at, at + count)
        here, there = pairs(prints), pairs(kept)
        same = np.zeros(count, dtype=np.bool_)
        same[: len(there)] = (here[: len(there)] == there).all(axis=1)
        out = np.where(same, np.arange(at, at + count), NEW)
        out[empty] = ZERO
        if np.count_nonzero(out == NEW) * 2 > count:
            self._search(here, out)
        return out

    def _search(self, here: Pairs, out: Numbers) -> None:
        """More than half of the pages moved: search everywhere, and go on behind the last page that was found."""
        new = np.flatnonzero(out == NEW)
        out[new] = self._base.find(here[new])
        found = np.flatnonzero(out >= 0)
        if len(found):
            last = int(found[-1])
            self._at = int(out[last]) + len(out) - last


def joined(chunk: Numbers, page: Numbers) -> npt.NDArray[np.uint64]:
    """Rows of extents for pages that lie in these chunks (none where negative) at these pages of them."""
    there = chunk >= 0
    follows = np.zeros(len(chunk), dtype=np.bool_)
    follows[1:] = there[1:] & there[:-1] & (chunk[1:] == chunk[:-1]) & (page[1:] == page[:-1] + 1)
    first = np.flatnonzero(there & ~follows)
    last = np.flatnonzero(there & ~np.append(follows[1:], False))
    rows = np.empty((len(first), 4), dtype=np.uint64)
    rows[:, 0], rows[:, 1] = first * PAGE, (last - first + 1) * PAGE
    rows[:, 2], rows[:, 3] = chunk[first], page[first] * PAGE
    return rows


# ---- Bases: what the store surely holds of this job, chunks by digest and pages by fingerprint, of a save's base

FOLDER, SUFFIX = "pages", ".prints"


@dataclass(frozen=True, slots=True)
class Base:
    """A checkpoint to build on. Without an index pages are compared by the chunks that they fall into."""

    known: dict[str, Stored] = field(default_factory=dict)  # by digest
    index: Index | None = None


NOTHING = Base()


class Bases:
    """Remembers one checkpoint of a job; its fingerprints also on this machine's disk, for an agent that is started anew."""

    def __init__(self, folder: Path, store: ObjectStore, job: str, keys: Keys) -> None:
        self._folder, self._store, self._job, self._keys = folder / FOLDER, store, job, keys
        self._held: dict[str, Base] = {}
        self.new_share: float | None = None  # of the pages of the last save that had a base; None = not measured

    def of(self, checkpoint: str | None) -> Base:
        """The base with this name; an empty one if it is missing or unreadable, and then the save sends everything."""
        if checkpoint is None:
            return NOTHING
        if checkpoint not in self._held:
            with contextlib.suppress(StoreError, json_codec.ProtocolError):
                data = self._store.get(object_keys.manifest_key(self._job, checkpoint))
                if data is not None:
                    image = manifest.decode(data, self._keys, self._job, checkpoint)
                    self._held = {checkpoint: Base(_by_digest(image), Index.load(self.path(checkpoint), image))}
        return self._held.get(checkpoint, NOTHING)

    def is_now(self, image: Manifest, prints: Iterable[tuple[str, bytes]]) -> None:
        """This checkpoint was committed; `prints` are the fingerprints of its page files."""
        index = Index(image)
        for name, found in prints:
            index.fill(name, found)
        self._held = {image.id: Base(_by_digest(image), index)}
        try:
            self._folder.mkdir(exist_ok=True)
            index.save(self.path(image.id))
        except OSError as e:
            log.warning("the fingerprints of checkpoint %s can't be kept: %s", image.id, e)
        for old in self._folder.glob("*"):
            if old != self.path(image.id):
                old.unlink(missing_ok=True)

    def forget(self) -> None:
        """The job is gone, or another one now."""
        self._held, self.new_share = {}, None
        for old in self._folder.glob("*"):
            old.unlink(missing_ok=True)

    def path(self, checkpoint: str) -> Path:
        """Where the fingerprints of a checkpoint are kept."""
        return self._folder / (checkpoint + SUFFIX)


def _by_digest(image: Manifest) -> dict[str, Stored]:
    return {c.digest: c for c in image.chunks}
