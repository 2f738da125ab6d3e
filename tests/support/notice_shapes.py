"""Ten jobs that a notice finds in different shapes, and what it will do to each: the same in virtual time and in boxes.

Memory and files are of random bytes, so as many bytes are sent. What counts is how long the link takes for what is new since
the newest checkpoint: one and a half times of that must fit into the notice, else it is no sure thing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spotsurfer_wire.final_save_forecast import Prospect
from spotsurfer_wire.messages import Head, HeadKind

MB = 10**6
EARLY, SHORT, NONE = NOTICES = (120.0, 30.0, 0.0)
SAVED, LOST = Prospect.SAVED, Prospect.LOST


@dataclass(frozen=True)
class Shape:
    """One job. Memory in megabytes, rates in megabytes a second."""

    name: str
    foretold: tuple[Prospect, Prospect, Prospect]  # with 120 s, with 30 s, without notice
    link: float | None = None  # of its first machine; None = as fast as the host
    table: int = 24  # memory from its start on
    dirty: bool = False  # all of that changes once a second
    grows: int = 0  # memory that comes after its last save
    writes: float = 0.0  # to a file, all the time
    processes: int = 1
    gpus: int = 0
    saves: tuple[float, ...] = (2.0,)  # seconds after its start at which a checkpoint is asked for

    def outcome(self, notice: float) -> Prospect:
        """What that notice will do."""
        return self.foretold[NOTICES.index(notice)]


SHAPES = (
    Shape("small", (SAVED, SAVED, LOST)),
    Shape("200 MB, clean", (SAVED, SAVED, LOST), link=10, table=200, saves=(2, 6)),
    Shape("200 MB, dirty", (SAVED, LOST, LOST), link=5, table=200, dirty=True, saves=(2, 6)),
    Shape("memory that grows", (SAVED, LOST, LOST), link=3, table=8, grows=140),
    Shape("large outputs, not sent yet", (SAVED, LOST, LOST), link=6, table=8, writes=5, saves=(2, 42)),
    Shape("many processes", (SAVED, SAVED, LOST), link=20, table=2, processes=40),
    Shape("a GPU", (SAVED, SAVED, LOST), link=20, gpus=1),
    Shape("slow link", (SAVED, LOST, LOST), link=1, table=32, dirty=True, saves=(2, 6)),
    Shape("no checkpoint yet", (SAVED, SAVED, LOST), saves=()),
    Shape("more than the link moves in 120 s", (LOST, LOST, LOST), link=2, table=8, grows=350),
)


def became(entries: Sequence[Head]) -> Prospect:
    """What a run did, by its head log: saved if the second machine went on from a final save of the first, else lost."""
    grant = next(e for e in entries if e.kind is HeadKind.GRANT and e.epoch == 2)
    final = any(e.kind is HeadKind.COMMIT and e.epoch == 1 and e.final and e.checkpoint == grant.checkpoint for e in entries)
    return SAVED if final else LOST
