"""Image files as CRIU writes them: a magic number, and messages of protobuf."""

from __future__ import annotations

import struct

MAGIC = bytes(8)


def number(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def message(**fields: int | bytes) -> bytes:
    """Fields by `f<number>`: plain numbers, and messages."""
    out = b""
    for name, value in fields.items():
        key = int(name[1:]) << 3
        out += number(key) + number(value) if isinstance(value, int) else number(key | 2) + number(len(value)) + value
    return out


def image(*messages: bytes) -> bytes:
    return MAGIC + b"".join(struct.pack("=I", len(m)) + m for m in messages)
