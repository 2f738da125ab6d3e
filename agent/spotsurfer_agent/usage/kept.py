"""Which figures of a window are kept."""

from __future__ import annotations

KEPT = 30  # windows: a reader that is away for no longer than five minutes misses none
