"""The manifest: the object whose existence makes a checkpoint. Written after every chunk, before the head entry."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import zstandard

from spotsurfer_agent import protocol

MANIFEST_BYTES_MAX = 256 << 20  # a limit on what a hostile or torn object may unpack to


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a file: BLAKE3 of its plain bytes, where it begins, how long it is. Gaps between chunks are zeros."""

    digest: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of an image or of the scratch tree. `path` is relative and never leaves its root."""

    path: str
    kind: str  # "file" | "dir" | "symlink" | "hardlink" | "fifo"
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    size: int = 0
    target: str = ""  # of a symlink, or the path a hardlink repeats
    xattrs: dict[str, str] = field(default_factory=dict)  # values in base64
    chunks: list[Chunk] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checkpoint, complete: what the engine dumped, the scratch tree and the log positions of the same instant."""

    id: str
    job: str
    epoch: int
    sequence: int
    kind: str  # "live" | "final"
    engine: str
    facts: dict[str, str]  # of the machine: compared before a restore; a refusal names both values
    image: list[Entry]
    scratch: list[Entry]
    log: dict[str, int]  # stream -> bytes of output contained
    init_pipes: dict[str, str]  # stream -> the name CRIU knows the shim's pipe by
    cpu_seconds: float  # of the job's work contained, all attempts
    frozen_seconds: float
    image_bytes: int
    at: str
    base: str | None = None


def encode(manifest: Manifest) -> bytes:
    """Bytes of the object."""
    return zstandard.ZstdCompressor(level=3).compress(protocol.encode(manifest))


def decode(data: bytes) -> Manifest:
    """The manifest from bytes; raises ProtocolError for anything damaged or from a newer version."""
    try:
        plain = zstandard.ZstdDecompressor().decompress(data, max_output_size=MANIFEST_BYTES_MAX)
        json.loads(plain)
    except (zstandard.ZstdError, ValueError) as e:
        raise protocol.ProtocolError(f"manifest is damaged: {e}") from e
    return protocol.decode(Manifest, plain)
