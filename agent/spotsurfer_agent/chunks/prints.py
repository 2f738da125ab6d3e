"""Fingerprints of pages, by which a page is known again: 16 bytes each, and nothing else of it has to be kept.

They (xxh3, 128 bits) are fast enough for a frozen job to wait for. They are no proof against who wants two pages to be alike,
and name nothing: chunks are named by a keyed cryptographic digest.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import xxhash

from spotsurfer_agent.buffers import PAGE

PRINT = 16  # bytes
_ONE = np.dtype([("page", np.void, PAGE)])  # with a field, for then numpy hands out views: plain ones it copies

Pairs = npt.NDArray[np.uint64]  # rows of two: a fingerprint's halves


def of_pages(data: memoryview) -> bytes:
    """The fingerprints of pages, one after the other, also of a last one that is not whole."""
    whole = len(data) - len(data) % PAGE
    prints = list(map(xxhash.xxh3_128_digest, np.frombuffer(data[:whole], dtype=_ONE)))  # faster than to slice page by page
    return b"".join(prints) + (xxhash.xxh3_128_digest(data[whole:]) if whole < len(data) else b"")


def pairs(prints: bytes) -> Pairs:
    """As numbers."""
    return np.frombuffer(prints, dtype=np.uint64).reshape(-1, 2)


ZERO_PAIR = pairs(of_pages(memoryview(bytes(PAGE))))[0]


def is_zero(prints: Pairs) -> npt.NDArray[np.bool_]:
    """Which of them are of pages that hold nothing but zeros."""
    zero: npt.NDArray[np.bool_] = (prints[:, 0] == ZERO_PAIR[0]) & (prints[:, 1] == ZERO_PAIR[1])
    return zero
