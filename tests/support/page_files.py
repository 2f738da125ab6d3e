"""Page files that are fed through the engine's sinks, and a store of plain chunks behind them."""

from __future__ import annotations

import random
from concurrent.futures import Future

import blake3
from spotsurfer_agent.buffers import PAGE
from spotsurfer_agent.chunks.table import Table
from spotsurfer_agent.engines.fingerprints import Index
from spotsurfer_agent.engines.pages import Pages
from spotsurfer_agent.engines.reserve import Reserve
from spotsurfer_agent.manifest import Manifest, Stored

BLOCK = 64 * PAGE
NAME = "pages-1.img"


class Store:
    """Takes chunks as the writer does, and gives them back."""

    def __init__(self, fails_after: int = 1 << 30) -> None:
        self.plain: dict[str, bytes] = {}
        self.table, self.sent, self.left = Table(), 0, fails_after

    def add(self, data, done):
        self.left -= 1
        if self.left < 0:
            raise OSError(5, "no such luck")
        plain = bytes(data)
        name = blake3.blake3(plain).hexdigest()
        self.sent += len(plain) if name not in self.plain else 0
        self.plain[name] = plain
        done()
        future: Future[Stored] = Future()
        future.set_result(Stored(name, len(plain)))
        return future

    def index_of(self, chunk):
        return self.table.index_of(chunk)

    def read(self, entry) -> bytes:
        out = bytearray(entry.size)
        for e in entry.extents:
            out[e.offset : e.offset + e.length] = self.plain[self.table.rows[e.chunk].digest][e.skip : e.skip + e.length]
        return bytes(out)


def save(store: Store, images: dict[str, bytes], base: Index | None = None, blocks: int = 400, release_first: bool = False):
    """Stream the images through; returns entries and the index of what they became."""
    store.table = Table()
    memory = Reserve(blocks * BLOCK, blocks * BLOCK, BLOCK)
    pages = Pages(memory, store, base)
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
