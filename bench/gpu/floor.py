"""The least that any tool could send of a second image: pages that were nowhere in the first one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from spotsurfer_agent.chunks.fingerprints import Printer, is_pages, kept_as, pairs
from spotsurfer_wire import manifest, object_keys
from spotsurfer_wire.chunks.reader import Reader
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.linux.buffers import PAGE
from spotsurfer_wire.store.port import ObjectStore
from support.engine_kit import JOB

Halves = npt.NDArray[np.uint64]


def of(store: ObjectStore, checkpoints: Sequence[str]) -> float | None:
    """The share of the second checkpoint's pages, empty ones left out; None where there are no two."""
    return share(*(_pages(store, c) for c in checkpoints)) if len(checkpoints) == 2 else None


def share(first: Halves, second: Halves) -> float:
    """By half a fingerprint of each page; a page counts as often as it is there."""
    return 1 - float(np.isin(second, first).mean()) if len(second) else 0.0


def _pages(store: ObjectStore, checkpoint: str) -> Halves:
    """From the fingerprints that an image brings along for the next save."""
    keys = Keys.derive(b"", JOB)
    data = store.get(object_keys.manifest_key(JOB, checkpoint))
    assert data is not None, checkpoint
    image, found = manifest.decode(data, keys, JOB, checkpoint), [np.empty(0, dtype=np.uint64)]
    empty = pairs(Printer(keys.prints).of_pages(memoryview(bytes(PAGE))))[0]
    names = {kept_as(entry.path) for entry in image.image if is_pages(entry)}
    with Reader(store, JOB, keys) as reader:
        for entry in (e for e in image.image if e.path in names):
            whole = bytearray(entry.size)
            for e in entry.extents:
                whole[e.offset : e.offset + e.length] = reader.plain(image.chunks[e.chunk])[e.skip : e.skip + e.length]
            rows = pairs(bytes(whole))
            found.append(rows[(rows != empty).any(axis=1), 0])
    return np.concatenate(found)
