"""Where data is cut into chunks: after a page whose content says so, so that what moved is cut at the same places again.

The rule looks at fingerprints of pages, which whoever reads memory needs anyway to know pages again. The only place that knows:
a better rule changes nothing else, but lets one save find nothing that it knows.
"""

from __future__ import annotations

import numpy as np

from spotsurfer_agent.chunks.prints import Pairs

PAGES_MIN, PAGES_MAX = 256, 1024
MASK = np.uint64(0xFF)  # one page in 256 ends a chunk that is long enough: 1.9 MiB on average


class Cutter:
    """Cuts one stream of pages. Zero pages and pages that are known already are not part of it."""

    def __init__(self) -> None:
        self._pages = 0  # since the last cut

    def cuts(self, prints: Pairs) -> list[int]:
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
