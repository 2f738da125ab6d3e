"""Where bytes lie. Apart from `buffers`, for numpy takes a tenth of a second to load and the shim of a job needs none of it."""

from __future__ import annotations

import numpy as np

from spotsurfer_wire.linux.buffers import Buffer


def address(data: Buffer) -> int:
    """Where bytes lie in our memory; for as long as somebody holds them."""
    return int(np.frombuffer(data, dtype=np.uint8).ctypes.data)
