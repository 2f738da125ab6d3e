"""The list of chunks that a manifest will carry, growing while a save is under way."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from spotsurfer_agent.extents import Extents
from spotsurfer_agent.manifest import Stored


@dataclass(frozen=True, slots=True)
class Content:
    """What a file consists of, whatever table it is written down in: extents and the chunks that their numbers mean."""

    extents: Extents
    chunks: list[Stored]

    @classmethod
    def of(cls, extents: Extents, table: list[Stored]) -> Content:
        """The part of a table that these extents need."""
        used = extents.chunks()
        return cls(extents.moved({chunk: i for i, chunk in enumerate(used)}), [table[chunk] for chunk in used])


class Table:
    """Chunks in the order in which they were first named. Safe to use from several threads."""

    def __init__(self) -> None:
        self.rows: list[Stored] = []
        self._places: dict[str, int] = {}
        self._lock = threading.Lock()

    def index_of(self, chunk: Stored) -> int:
        """The number by which extents refer to this chunk; it joins the table where it is not in it."""
        with self._lock:
            place = self._places.setdefault(chunk.digest, len(self.rows))
            if place == len(self.rows):
                self.rows.append(chunk)
            return place

    def extents_of(self, content: Content) -> Extents:
        """The extents of a content, with the numbers of this table."""
        return content.extents.moved([self.index_of(c) for c in content.chunks])
