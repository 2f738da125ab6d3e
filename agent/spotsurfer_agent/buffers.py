"""What bytes lie in on their way between memory, disk and store, and the pages that memory is counted by."""

from __future__ import annotations

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

PAGE = 4096  # bytes
