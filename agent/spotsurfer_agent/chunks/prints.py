"""Fingerprints of pages, by which a page is known again: 16 bytes each, and nothing else of it has to be kept.

Pages of one fingerprint are taken for equal, unseen. So nobody may be able to choose two of them: not who writes a file that a
job reads, either. A fingerprint is keyed for the lineage: each 16 bytes of the page go through AES under one secret key, xxh3
(128 bits) makes a digest of what comes out, and that goes through AES under another one. So the fingerprints in the store tell
which pages are alike, and nothing else.

xxh3 alone would not do. Without a seed everything about it is public, and a page of any fingerprint is made in a moment
(`tests/support/twins.py`). With a secret seed there are pages that are alike to it under one seed in sixty. With a secret for
each of its words there would be changes that it misses once in 2^33, for it multiplies halves of words of 64 bits. Behind AES
nobody chooses what xxh3 is given, but only which of its blocks are alike.

Two different pages have one fingerprint with a probability of 2^-128 if nobody chose them, as with any good digest of 128 bits.
For pages that somebody chose there is no proof, as xxh3 has none; what we could think of stays below 2^-110.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import xxhash
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from spotsurfer_agent.buffers import PAGE
from spotsurfer_agent.chunks.keys import Keys

PRINT = 16  # bytes
_PIECE_BYTES = 64 * PAGE  # at once: it and what AES makes of it stay in a processor's own cache
_KEY = _BLOCK = 16  # bytes, of AES
_WORDS = PAGE // 8
_ONE = np.dtype([("page", np.void, PAGE)])  # with a field, for then numpy hands out views: plain ones it copies

Pairs = npt.NDArray[np.uint64]  # rows of two: a fingerprint's halves


class Printer:
    """Makes the fingerprints of one lineage's pages. It serves one thread at a time."""

    def __init__(self, keys: Keys) -> None:
        self._page, self._digest = (
            Cipher(algorithms.AES(key), modes.ECB()).encryptor()  # noqa: S305 -- one block at a time is what is wanted
            for key in (keys.prints[:_KEY], keys.prints[_KEY:])
        )
        self._mixed = memoryview(bytearray(_PIECE_BYTES + _BLOCK))  # the library asks for one more than it fills
        self._pages = np.frombuffer(self._mixed[:_PIECE_BYTES], dtype=_ONE)

    def of_pages(self, data: memoryview) -> bytes:
        """The fingerprints of pages, one after the other; a last one that is not whole counts as filled up with zeros."""
        whole = len(data) - len(data) % PAGE
        pieces = [data[at : min(at + _PIECE_BYTES, whole)] for at in range(0, whole, _PIECE_BYTES)]
        if whole < len(data):
            pieces.append(memoryview(bytes(data[whole:]).ljust(PAGE, b"\0")))
        return self._digest.update(b"".join([self._digests(piece) for piece in pieces]))

    def _digests(self, piece: memoryview) -> bytes:
        count = self._page.update_into(piece, self._mixed)
        return b"".join(map(xxhash.xxh3_128_digest, self._pages[: count // PAGE]))  # faster than to slice page by page


def pairs(prints: bytes) -> Pairs:
    """As numbers."""
    return np.frombuffer(prints, dtype=np.uint64).reshape(-1, 2)


def empty(data: memoryview) -> npt.NDArray[np.bool_]:
    """Which pages hold nothing but zeros, by a look at all their bytes; also of a last one that is not whole."""
    count = len(data) // PAGE
    words = np.frombuffer(data, dtype=np.uint64, count=count * _WORDS).reshape(-1, _WORDS)
    out = (words[:, 0] | words[:, 170] | words[:, 341] | words[:, 511]) == 0  # most pages that hold something show it here
    doubtful = np.flatnonzero(out)
    out[doubtful] = np.bitwise_or.reduce(words[doubtful], axis=1) == 0
    return out if len(data) % PAGE == 0 else np.append(out, not any(data[count * PAGE :]))
