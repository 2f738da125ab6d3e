"""Buffers of bytes on their way between memory, disk and store, and the page size."""

from __future__ import annotations

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

PAGE = 4096  # bytes
