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

Pairs = npt.NDArray[np.uint64]  # rows of two: a fingerprint's halves


def of_pages(data: memoryview) -> bytes:
    """The fingerprints of pages, one after the other, also of a last one that is not whole."""
    digest = xxhash.xxh3_128_digest
    return b"".join([digest(data[at : at + PAGE]) for at in range(0, len(data), PAGE)])


def pairs(prints: bytes) -> Pairs:
    """As numbers."""
    return np.frombuffer(prints, dtype=np.uint64).reshape(-1, 2)


ZERO_PAIR = pairs(of_pages(memoryview(bytes(PAGE))))[0]


def is_zero(prints: Pairs) -> npt.NDArray[np.bool_]:
    """Which of them are of pages that hold nothing but zeros."""
    zero: npt.NDArray[np.bool_] = (prints[:, 0] == ZERO_PAIR[0]) & (prints[:, 1] == ZERO_PAIR[1])
    return zero
