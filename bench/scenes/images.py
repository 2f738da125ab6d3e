"""A saved image as files again, and what is new in it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import xxhash
from spotsurfer_agent.files import tree
from spotsurfer_wire.chunks.reader import Reader
from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.linux.buffers import PAGE
from spotsurfer_wire.manifest import Manifest
from spotsurfer_wire.store.obstore import open_store
from support import engine_kit

from bench.scenes import kit

ZERO = bytes(PAGE)


def build(image: Manifest, folder: Path) -> None:
    """The image's files below a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    keys = Keys.derive(b"", engine_kit.JOB)
    tree.build(folder, image.image, image.chunks, Reader(open_store(f"file://{kit.STORE}"), engine_kit.JOB, keys))


def pages(folder: Path) -> Iterator[bytes]:
    """Every page of memory in a folder of image files that is not zero."""
    for path in sorted(folder.glob("pages-*.img")):
        with path.open("rb") as f:
            while block := f.read(PAGE << 8):
                for at in range(0, len(block), PAGE):
                    page = block[at : at + PAGE]
                    if page != ZERO:
                        yield page


def counted(folder: Path) -> Counter[bytes]:
    """Which pages there are, by fingerprint, and how often each."""
    return Counter(xxhash.xxh3_128_digest(p) for p in pages(folder))


def new_bytes(image: Manifest, base: Manifest) -> int:
    """Plain bytes of the chunks that the image has and its base has not."""
    old = {c.digest for c in base.chunks}
    return sum(c.size for c in image.chunks if c.digest not in old)


def all_bytes(image: Manifest) -> int:
    """Plain bytes of all that the image holds, zeros left out."""
    return sum(e.extents.bytes for e in image.entries())
