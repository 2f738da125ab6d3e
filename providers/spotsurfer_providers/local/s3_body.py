"""Bodies of requests as S3 clients send them: plain, in HTTP chunks, in aws-chunked frames, or one within the other."""

from __future__ import annotations

import io
from email.message import Message
from typing import BinaryIO

from spotsurfer_providers.local.s3_text import S3Error

Headers = Message
BLOCK_BYTES = 1 << 20
_LINE_BYTES_MAX = 8192


class _Limited(io.RawIOBase):
    """The next `left` bytes of a connection."""

    def __init__(self, source: BinaryIO, left: int) -> None:
        self._source = source
        self._left = left

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        want = min(len(buffer), self._left)
        if want == 0:
            return 0
        data = self._source.read(want)
        if not data:
            raise S3Error(400, "IncompleteBody", "the connection ended before the body did")
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)


class _Framed(io.RawIOBase):
    """`hex[;extensions] CRLF bytes CRLF …  0 CRLF trailers CRLF`: HTTP's chunks and aws-chunked are the same grammar."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._left = 0
        self._first = True
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self._left == 0 and not self._ended:
            self._next_frame()
        if self._ended:
            return 0
        data = self._source.read(min(len(buffer), self._left))
        if not data:
            raise S3Error(400, "IncompleteBody", "the connection ended before the body did")
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)

    def _next_frame(self) -> None:
        if not self._first:
            self._line()  # the end of line behind the bytes
        self._first = False
        size = self._line().partition(b";")[0].strip()
        try:
            self._left = int(size, 16)
        except ValueError as e:
            raise S3Error(400, "InvalidRequest", "the body is not framed as its headers say") from e
        if self._left == 0:
            self._ended = True
            while self._line().strip():
                pass  # trailers: checksums, which TCP has already seen to

    def _line(self) -> bytes:
        line = self._source.readline(_LINE_BYTES_MAX)
        if not line and not self._ended:
            raise S3Error(400, "IncompleteBody", "the connection ended before the body did")
        return line


def body(connection: BinaryIO, headers: Headers) -> BinaryIO:
    """The plain bytes of a request's body. Raises S3Error, also while it is read."""
    raw = _raw(connection, headers)
    encoded = "aws-chunked" in headers.get("Content-Encoding", "")
    if encoded or headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
        return io.BufferedReader(_Framed(raw), BLOCK_BYTES)
    return raw


def _raw(connection: BinaryIO, headers: Headers) -> BinaryIO:
    if "chunked" in headers.get("Transfer-Encoding", "").lower():
        return io.BufferedReader(_Framed(connection), BLOCK_BYTES)
    length = headers.get("Content-Length", "0")
    if not length.isdigit():
        raise S3Error(400, "InvalidArgument", "Content-Length is not a number")
    return io.BufferedReader(_Limited(connection, int(length)), BLOCK_BYTES)


def declared_length(headers: Headers) -> int | None:
    """How long the plain body says it is, where it says so."""
    text = headers.get("x-amz-decoded-content-length")
    return int(text) if text is not None and text.isdigit() else None
