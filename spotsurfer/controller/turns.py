"""When jobs that have ended had machines: who came after them was not starved until then."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from spotsurfer.model.ids import JobId
from spotsurfer.model.job import Job
from spotsurfer.model.snapshot import Held
from spotsurfer.state import jobs as rows


class Turns:
    """One a controller. A look asks the database only where jobs came or ended since the one before."""

    def __init__(self) -> None:
        self._open: set[JobId] = set()
        self._held: tuple[Held, ...] = ()

    def held(self, connection: Connection, jobs: Sequence[Job]) -> Sequence[Held]:
        """By other jobs than these, the open ones, since the oldest of these was submitted."""
        now_open = {j.id for j in jobs}
        if now_open != self._open:
            found = rows.held_since(connection, min(j.submitted_at for j in jobs)) if jobs else []
            self._held = tuple(h for h in found if h.job not in now_open)
            self._open = now_open
        return self._held
