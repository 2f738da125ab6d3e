"""Where data is cut into chunks: after a page whose content says so, so that what moved is cut at the same places again.

The rule looks at fingerprints of pages (xxh3-128, 16 bytes a page), which whoever reads memory needs anyway to know pages
again. The only place that knows: a better rule changes nothing else, but lets one save find nothing that it knows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import xxhash

from spotsurfer_agent.buffers import PAGE

FINGERPRINT_BYTES = 16
PAGES_MIN, PAGES_MAX = 64, 1024
MASK = np.uint64(0xFF)  # one page in 256 ends a chunk: 320 pages, 1.25 MiB, on average
ZERO_PAGE = bytes(PAGE)
ZERO = np.frombuffer(xxhash.xxh3_128_digest(ZERO_PAGE), dtype=np.uint64)

Prints = npt.NDArray[np.uint64]  # of shape (pages, 2)


def fingerprints(data: memoryview) -> Prints:
    """One row for each page, also for a last one that is not whole. No proof against who wants two to be alike."""
    xxh = xxhash.xxh3_128_digest
    joined = b"".join([xxh(data[i : i + PAGE]) for i in range(0, len(data), PAGE)])
    return np.frombuffer(joined, dtype=np.uint64).reshape(-1, 2)


def is_zero(prints: Prints) -> npt.NDArray[np.bool_]:
    """Which pages hold nothing but zeros."""
    zero: npt.NDArray[np.bool_] = (prints[:, 0] == ZERO[0]) & (prints[:, 1] == ZERO[1])
    return zero


class Cutter:
    """Cuts one stream of pages. Zero pages and pages that are known already are not part of it."""

    def __init__(self) -> None:
        self._pages = 0  # since the last cut

    def cuts(self, prints: Prints) -> list[int]:
        """The pages (counted within these) after which a chunk ends: `n` means that page n-1 is its last one."""
        out, begun = list[int](), -self._pages  # where the chunk that is being filled began
        for last in np.flatnonzero((prints[:, 0] & MASK) == 0).tolist():
            begun = self._forced(begun, last + 1, out)
            if last + 1 - begun >= PAGES_MIN:
                begun = last + 1
                out.append(begun)
        begun = self._forced(begun, len(prints), out)
        self._pages = len(prints) - begun
        return out

    def _forced(self, begun: int, until: int, out: list[int]) -> int:
        """Cut what would become too long before page `until`."""
        while until - begun >= PAGES_MAX:
            begun += PAGES_MAX
            out.append(begun)
        return begun

    def end(self) -> None:
        """The stream is cut here whatever its content."""
        self._pages = 0
