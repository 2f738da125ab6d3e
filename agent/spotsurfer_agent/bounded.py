"""Objects that somebody else may have written: of one that is too large, no more is read than shows that.

A listing tells sizes, but an object may be another one by the time that it is read.
"""

from __future__ import annotations

from spotsurfer_agent.coding import ProtocolError
from spotsurfer_agent.storeport import ObjectStore


def read(store: ObjectStore, key: str, most: int) -> bytes | None:
    """The whole object of at most `most` bytes, or None. Raises StoreError, and ProtocolError for a larger one."""
    data = store.get_range(key, 0, most + 1)
    if data is not None and len(data) > most:
        raise ProtocolError(f"{key} has more than {most} bytes, so it is not one of ours: it is not read")
    return data
