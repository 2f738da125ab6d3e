"""What bytes lie in on their way between memory, disk and store, and the pages that memory is counted by."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

Buffer: TypeAlias = bytes | bytearray | memoryview

PAGE = 4096  # bytes


def address(data: Buffer) -> int:
    """Where bytes lie in our memory; for as long as somebody holds them."""
    return int(np.frombuffer(data, dtype=np.uint8).ctypes.data)
