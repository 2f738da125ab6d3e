"""What a chunk object looks like: one byte that says how, then the bytes. Named by the BLAKE3 of the plain bytes."""

from __future__ import annotations

import threading

import blake3
import zstandard

from spotsurfer_agent.chunks.keys import Keys

RAW, ZSTD = 0, 1
LEVEL = 1
_local = threading.local()  # a compressor serves one thread at a time


class Damaged(Exception):
    """The bytes are not those that the name promises."""


def digest(data: bytes, keys: Keys) -> str:
    """The name of a chunk."""
    return blake3.blake3(data, key=keys.name).hexdigest()


def encode(data: bytes) -> bytes:
    """The object for plain bytes; raw where compression does not shrink it."""
    if not hasattr(_local, "compressor"):
        _local.compressor = zstandard.ZstdCompressor(level=LEVEL)
    packed: bytes = _local.compressor.compress(data)
    return bytes([ZSTD]) + packed if len(packed) < len(data) else bytes([RAW]) + data


def decode(name: str, length: int, stored: bytes, keys: Keys) -> bytes:
    """The plain bytes, checked against name and length. Raises Damaged."""
    if not stored or stored[0] not in (RAW, ZSTD):
        raise Damaged("it is empty or of a kind that this version does not know")
    plain = stored[1:]
    if stored[0] == ZSTD:
        try:
            plain = zstandard.ZstdDecompressor().decompress(plain, max_output_size=length)
        except zstandard.ZstdError as e:
            raise Damaged(f"it does not unpack ({e})") from e
    if len(plain) != length or digest(plain, keys) != name:
        raise Damaged("its content does not match its name")
    return plain
