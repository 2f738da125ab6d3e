"""The address of a buffer.

This is apart from `buffers` because numpy takes a tenth of a second to load, and a job's shim does not need it.
"""

from __future__ import annotations

import numpy as np

from spotsurfer_wire.linux.buffers import Buffer


def address(data: Buffer) -> int:
    """The address of bytes in our memory; valid while somebody holds them."""
    return int(np.frombuffer(data, dtype=np.uint8).ctypes.data)
