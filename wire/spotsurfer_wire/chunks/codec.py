"""What a chunk looks like in the store: the plain bytes, or one byte that names the form, then the encoded bytes.

An object that is exactly as long as its chunk *is* the chunk: no byte is copied on the way to the disk or back. Compression is
used only if it saves more than the marks below could ever add, so the two can't be confused. A reader gets plain bytes only
after they were checked against the name.

The name is a keyed pseudorandom function of the plain bytes, in the usual fast construction: a universal hash under a secret
key, then a pseudorandom function of that hash (Wegman and Carter 1981; AES-GCM-SIV, RFC 8452, does the same). The hash is GMAC
(NIST SP 800-38D) under one fixed nonce. Whoever sees tags under a repeated nonce learns GMAC's key. Nobody sees them: the name
is keyed BLAKE3 of the tag. Without the keys two contents of at most 16 MiB have the same name with a probability of at most
2^-107, whoever chose them (McGrew and Viega 2004: blocks / 2^128), and a changed object is as unlikely to pass for another.
BLAKE3 of all bytes promises the same and takes five times as long; every byte of every save and restore goes through here.
"""

from __future__ import annotations

import os
import threading

import blake3
import lz4.block
import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from spotsurfer_wire.crypto import Keys
from spotsurfer_wire.linux.buffers import Buffer
from spotsurfer_wire.manifest import Stored

RAW, ZSTD, LZ4, SECRET = 0, 1, 2, 0x80  # the first byte; SECRET is added to one of the others
NONCE_BYTES, TAG_BYTES = 12, 16
FIXED_NONCE = bytes(NONCE_BYTES)  # makes a hash of GMAC; see above why that is safe here, and only here
SAVED_BYTES_MIN = 64  # more than mark, nonce and tag together
LEVEL = 1
SAMPLE_BYTES, SAMPLES = 4096, 4
WORTH = {"lz4": 0.92, "zstd": 0.95}  # of a sample or chunk: compression is worth it if at most this share is left
_local = threading.local()  # a compressor serves one thread at a time


class Damaged(Exception):
    """The bytes are not those that the name promises."""


def digest(data: Buffer, keys: Keys) -> str:
    """The name of a chunk: 64 hexadecimal digits."""
    tag = AESGCM(keys.content).encrypt(FIXED_NONCE, b"", data)
    return blake3.blake3(tag, key=keys.name).hexdigest()


def encode(data: Buffer, name: str, keys: Keys, how: str) -> Buffer:
    """The stored form of plain bytes with the digest `name`; `data` itself if it stays as it is. `how`: none, lz4, zstd."""
    packed = _packed(data, how)
    if not keys.encrypts:
        return data if packed is None else packed
    kind, body = (RAW, memoryview(data)) if packed is None else (packed[0], memoryview(packed)[1:])
    mark, nonce = bytes([kind | SECRET]), os.urandom(NONCE_BYTES)
    out = bytearray(1 + NONCE_BYTES + len(body) + TAG_BYTES)
    out[: 1 + NONCE_BYTES] = mark + nonce
    AESGCM(keys.cipher).encrypt_into(nonce, body, mark + bytes.fromhex(name), memoryview(out)[1 + NONCE_BYTES :])
    return out


def decode(stored: Buffer, expected: Stored, keys: Keys) -> bytes:
    """The plain bytes, checked against name and size. Raises Damaged."""
    plain = stored if len(stored) == expected.size else _unpacked(*_opened(stored, expected, keys), expected.size)
    if len(plain) != expected.size or digest(plain, keys) != expected.digest:
        raise Damaged("its content does not match its name")
    return bytes(plain)  # no copy of what is bytes already


def _packed(data: Buffer, how: str) -> bytes | None:
    """Mark and compressed bytes, or None if that is not worth it."""
    if how == "none" or len(data) <= SAVED_BYTES_MIN or _is_noise(data, how):
        return None
    packed = _compressed(data, how)
    if len(packed) > min(WORTH[how] * len(data), len(data) - SAVED_BYTES_MIN):
        return None
    return bytes([ZSTD if how == "zstd" else LZ4]) + packed


def _is_noise(data: Buffer, how: str) -> bool:
    """Whether a few small samples of a long chunk do not shrink; then the rest is not compressed."""
    if len(data) <= 4 * SAMPLES * SAMPLE_BYTES:
        return False
    view, step = memoryview(data), len(data) // SAMPLES
    sample = b"".join(view[i * step : i * step + SAMPLE_BYTES] for i in range(SAMPLES))
    return len(_compressed(sample, how)) > WORTH[how] * len(sample)


def _compressed(data: Buffer, how: str) -> bytes:
    if how == "lz4":
        packed: bytes = lz4.block.compress(data, store_size=False)
        return packed
    if not hasattr(_local, "compressor"):
        _local.compressor = zstandard.ZstdCompressor(level=LEVEL)
    compressed: bytes = _local.compressor.compress(data)
    return compressed


def _opened(stored: Buffer, expected: Stored, keys: Keys) -> tuple[int, Buffer]:
    """Kind and bytes, decrypted if they were encrypted."""
    if not stored:
        raise Damaged("it is empty")
    kind, body = stored[0], memoryview(stored)[1:]
    if not kind & SECRET:
        return kind, body
    try:
        plain = AESGCM(keys.cipher).decrypt(
            body[:NONCE_BYTES], body[NONCE_BYTES:], bytes([kind]) + bytes.fromhex(expected.digest)
        )
    except (InvalidTag, ValueError) as e:
        raise Damaged("it can't be decrypted with this job's key") from e
    return kind & ~SECRET, plain


def _unpacked(kind: int, body: Buffer, size: int) -> Buffer:
    try:
        if kind == RAW:
            return body
        if kind == LZ4:
            plain: bytes = lz4.block.decompress(body, uncompressed_size=size)
            return plain
        if kind == ZSTD:
            if zstandard.frame_content_size(body) != size:  # the library allocates whatever size the frame claims
                raise ValueError("its frame promises another size")
            return zstandard.ZstdDecompressor().decompress(body, max_output_size=size)
    except (lz4.block.LZ4BlockError, zstandard.ZstdError, ValueError) as e:
        raise Damaged(f"it does not unpack ({e})") from e
    raise Damaged("it is of a kind that this version does not know")
