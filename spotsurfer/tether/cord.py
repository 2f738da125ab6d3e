"""A connection that outlives its sockets. Both ends of a tether use this file; on machines it needs Python 3.11 alone.

Each side counts and hashes the bytes of both directions, and keeps what it sent until the other side has taken it. A new socket
starts with what each side had. If both agree, the rest is sent again, and no byte is lost or comes twice. If a job went back to
an older checkpoint and has said something else since, they do not agree: then the connection is broken, as a network breaks it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

WINDOW = 4 << 20  # bytes that may be on their way
PIECE = 1 << 16
LINE_MAX = 1 << 20
RECORD = struct.Struct(">cQ")
DATA, TAKEN, END, BROKEN = b"D", b"T", b"E", b"B"
SILENT_SECONDS = 20  # after so long without an answer of the other host a socket is given up

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter
Words = dict[str, Any]


class Cord:
    """One end of a connection; `carry` gives it a socket for a while."""

    def __init__(self) -> None:
        self._sent, self._first, self._first_hash = bytearray(), 0, hashlib.blake2b()  # what the other end may not have yet
        self._ended = self._end_taken = False
        self._got: deque[bytes] = deque()
        self._had, self._had_hash, self._taken = 0, hashlib.blake2b(), 0
        self._other_end: int | None = None
        self._other_end_taken = False
        self._writer: Writer | None = None
        self._waiters: set[asyncio.Future[None]] = set()
        self.broken = self.met = False

    @property
    def done(self) -> bool:
        """Both directions ended, and everything was taken."""
        return self._end_taken and self._other_end_taken

    @property
    def held(self) -> bool:
        """Whether it has a socket now."""
        return self._writer is not None

    # ---- the program's side

    async def send(self, data: bytes) -> None:
        """Raises ConnectionResetError if the connection broke."""
        await self._until(lambda: len(self._sent) < WINDOW)
        place = len(self._sent)
        self._sent += data
        self._tell(DATA, len(data), self._sent[place:])

    def end(self) -> None:
        """Nothing more will be sent."""
        self._ended = True
        self._tell(END, self._first + len(self._sent))

    async def take(self) -> bytes:
        """The next bytes; none at the end. Call `taken` when they are where they belong. Raises ConnectionResetError."""
        await self._until(lambda: bool(self._got) or self._other_end == self._had)
        return self._got.popleft() if self._got else b""

    def taken(self, count: int) -> None:
        """So many bytes are where they belong; 0: the end is."""
        self._taken += count
        self._other_end_taken = self._other_end_taken or count == 0
        self._tell(TAKEN, self._taken + self._other_end_taken)
        self._wake()

    def snap(self) -> None:
        """Break it, and tell the other end."""
        self._tell(BROKEN, 0)
        self.broken = True
        self._wake()

    # ---- the socket's side

    def state(self) -> Words:
        """What this end had, for the other one."""
        return {"had": self._had, "hash": self._had_hash.hexdigest()}

    def agrees(self, other: Words) -> bool:
        """Whether the other end had what this one sent, and can be sent the rest."""
        count = int(other["had"]) - self._first
        if not 0 <= count <= len(self._sent):
            return False
        h = self._first_hash.copy()
        h.update(self._sent[:count])
        return h.hexdigest() == str(other["hash"])

    async def carry(self, reader: Reader, writer: Writer, other: Words) -> None:
        """Use this socket until it ends, or the connection does. `other`: the other end's state, which agrees."""
        if self._writer is not None:
            self._writer.close()  # of a machine that is no more
        self._writer, self.met = writer, True
        rest = self._sent[int(other["had"]) - self._first :]
        if rest:
            self._tell(DATA, len(rest), rest)
        if self._ended and not self._end_taken:
            self._tell(END, self._first + len(self._sent))
        self._tell(TAKEN, self._taken + self._other_end_taken)
        try:
            await self._read(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the next socket goes on
        finally:
            if self._writer is writer:
                self._writer = None
            writer.close()
            self._wake()

    async def _read(self, reader: Reader, writer: Writer) -> None:
        while not (self.done or self.broken):
            kind, number = RECORD.unpack(await reader.readexactly(RECORD.size))
            data = await reader.readexactly(number) if kind == DATA else b""
            if self._writer is not writer:
                break  # a newer socket counts: what this one brings late comes by that one
            if kind == DATA:
                self._hear(data)
            elif kind == TAKEN:
                self._forget(number)
            elif kind == END:
                self._other_end = number
            else:
                self.broken = True
            self._wake()

    def _hear(self, data: bytes) -> None:
        self._had += len(data)
        self._had_hash.update(data)
        self._got.append(data)

    def _forget(self, number: int) -> None:
        """The other end has taken so many bytes, and one more for the end."""
        total = self._first + len(self._sent)
        self._end_taken = self._ended and number == total + 1
        count = min(number, total) - self._first
        if count > 0:
            self._first_hash.update(self._sent[:count])
            del self._sent[:count]
            self._first += count

    def _tell(self, kind: bytes, number: int, data: bytes | bytearray = b"") -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(RECORD.pack(kind, number) + data)

    # ---- waiting

    async def _until(self, good: Callable[[], bool]) -> None:
        while not self.broken and not good():
            await self.change()
        if self.broken:
            raise ConnectionResetError("the connection broke")

    async def change(self) -> None:
        """Until something happened."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        await waiter

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()


async def join(cord: Cord, reader: Reader, writer: Writer) -> None:
    """Lead a program's connection over the cord, both ways, until both ended or one broke."""
    both = {asyncio.ensure_future(_out(cord, reader)), asyncio.ensure_future(_in(cord, writer))}
    whole = False
    try:
        finished, _ = await asyncio.wait(both, return_when=asyncio.FIRST_EXCEPTION)
        whole = all(task.exception() is None for task in finished)
    finally:
        for task in both:
            task.cancel()
        if whole:
            writer.close()
        else:
            cord.snap()
            abort(writer)


async def _out(cord: Cord, reader: Reader) -> None:
    while True:
        data = await reader.read(PIECE)
        if not data:
            break
        await cord.send(data)
    cord.end()


async def _in(cord: Cord, writer: Writer) -> None:
    while True:
        data = await cord.take()
        if not data:
            break
        writer.write(data)
        await writer.drain()
        cord.taken(len(data))
    with contextlib.suppress(OSError):  # the program has closed its end already
        writer.write_eof()
    cord.taken(0)


def abort(writer: Writer) -> None:
    """End a program's connection so that it sees an error, and no end."""
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def watch(writer: Writer) -> None:
    """Have the kernel notice that the other host is gone."""
    own = writer.get_extra_info("socket")
    if own.family in (socket.AF_INET, socket.AF_INET6):
        own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_SECONDS // 2)
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENT_SECONDS // 4)
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_SECONDS * 1000)


async def read_words(reader: Reader) -> Words:
    """One line of JSON. Raises OSError, ValueError."""
    line = await asyncio.wait_for(reader.readline(), SILENT_SECONDS)
    if not line.endswith(b"\n"):
        raise ConnectionResetError("it ended before it said anything")
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def write_words(writer: Writer, words: Words) -> None:
    """The same, the other way."""
    writer.write(json.dumps(words).encode() + b"\n")
