"""Saves of pages without a job: what CRIU would stream goes through `Pages` into chunks in memory."""

from __future__ import annotations

import random

from spotsurfer_agent.chunks.fingerprints import Index
from spotsurfer_agent.chunks.writer import Table
from spotsurfer_agent.save.memory_reserve import Reserve
from spotsurfer_agent.save.pages import Pages
from spotsurfer_wire.linux.buffers import PAGE
from spotsurfer_wire.manifest import Manifest
from support.chunks import Store

BLOCK = 64 * PAGE
NAME = "pages-1.img"


def save(
    store: Store,
    images: dict[str, bytes],
    base: Index | None = None,
    blocks: int = 400,
    release_first: bool = False,
    compares: bool = True,
):
    """Stream the images through; returns entries and the index of what they became."""
    store.table = Table()
    memory = Reserve(blocks * BLOCK, blocks * BLOCK, BLOCK)
    pages = Pages(memory, store, base, compares=compares)
    if release_first:
        pages.release()
    for name, data in images.items():
        feed(pages.sink(name), data)
    pages.finish()
    entries = pages.entries()
    memory.close()
    index = Index(manifest(entries, store.table.rows))
    for name, prints in pages.prints():
        index.fill(name, prints)
    return entries, index


def feed(sink, data: bytes) -> None:
    at, view = 0, memoryview(data)
    while at < len(data):
        room = sink.room()
        count = min(len(room), len(data) - at, 37 * PAGE + 11)
        room[:count] = view[at : at + count]
        sink.filled(count)
        at += count
    sink.end()


def manifest(entries, table) -> Manifest:
    return Manifest("c", "j", 1, 1, "live", "criu", {}, entries, [], {}, {}, 0.0, 0.0, 0, "", chunks=table)


def content(*kinds: int) -> bytes:
    """One page for each number; 0 is an empty page."""
    return b"".join(random.Random(k).randbytes(PAGE) if k else bytes(PAGE) for k in kinds)
