"""Bytes of two connections, both ways: what one end says the other hears, its end included.

A slow reader makes the other end wait: no more than some pieces are held. A connection that ended one way lives on the other
way as long as something moves there.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from dataclasses import dataclass, field

PIECE_BYTES = 1 << 16
HALF_SECONDS = 300.0  # one way ended, nothing moves the other way
ALIVE_SECONDS, ALIVE_TRIES = 60, 4  # a peer that vanished without a word is found out so


@dataclass
class Stream:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def gone(self) -> bool:
        """Its peer has reset it, or ended it without having said anything."""
        return self.reader.exception() is not None or self.reader.at_eof() or self.writer.transport.is_closing()

    def reset(self) -> None:
        """End it as a crash would: a peer must not take what it has for all there was."""
        raw = self.writer.get_extra_info("socket")
        if raw is not None and not self.writer.transport.is_closing():
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@dataclass
class _Moved:
    at: float = field(default_factory=time.monotonic)


async def join(one: Stream, other: Stream, half_seconds: float = HALF_SECONDS) -> None:
    """Carry bytes until both ways ended; an error of one end resets both. Both are closed when this returns."""
    moved = _Moved()
    ways = [asyncio.create_task(_pump(a.reader, b.writer, moved)) for a, b in ((one, other), (other, one))]
    whole = False
    try:
        done, left = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        failed = any(w.exception() is not None for w in done)
        while left and not failed and time.monotonic() - moved.at < half_seconds:
            done, left = await asyncio.wait(left, timeout=half_seconds / 10)
            failed = any(w.exception() is not None for w in done)
        whole = not left and not failed
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for stream in (one, other):
            stream.writer.close() if whole else stream.reset()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, moved: _Moved) -> None:
    while piece := await reader.read(PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
        moved.at = time.monotonic()
    writer.write_eof()
    moved.at = time.monotonic()


def kept_alive(raw: socket.socket) -> None:
    """Have the kernel ask a silent peer whether it is there."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, ALIVE_SECONDS)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ALIVE_SECONDS // ALIVE_TRIES)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, ALIVE_TRIES)
