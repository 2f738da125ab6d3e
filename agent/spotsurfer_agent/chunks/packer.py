"""Small chunks together in one object: a store takes as long for a kilobyte as for a megabyte."""

from __future__ import annotations

from typing import Generic, TypeVar

from spotsurfer_agent.buffers import Buffer

PACKED_BELOW_BYTES = 256 << 10  # of the stored form
PACK_BYTES = 4 << 20

M = TypeVar("M")


class Pack(Generic[M]):
    """An object that is being filled."""

    def __init__(self) -> None:
        self.members: list[tuple[M, int, int]] = []  # whose, where it begins, how long it is
        self._parts: list[Buffer] = []
        self._bytes = 0

    def add(self, member: M, stored: Buffer) -> None:
        """Put one more stored form in."""
        self.members.append((member, self._bytes, len(stored)))
        self._parts.append(stored)
        self._bytes += len(stored)

    @property
    def is_full(self) -> bool:
        """Whether it is time for the next one."""
        return self._bytes >= PACK_BYTES - PACKED_BELOW_BYTES

    def data(self) -> bytes:
        """The object."""
        return b"".join(self._parts)
