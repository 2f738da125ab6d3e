"""A grant says how much processor time its checkpoint contains, whatever was written about that checkpoint later."""

from __future__ import annotations

import dataclasses

import pytest
from spotsurfer_wire import head_log
from spotsurfer_wire.head_log import HeadLog, Place
from spotsurfer_wire.messages import Done
from support.builders import NOW
from support.dict_store import DictStore

from spotsurfer.controller.apply import Apply
from spotsurfer.model.actions import Grant
from spotsurfer.model.job import AttemptNumber, JobId
from spotsurfer.ports.clock import ManualClock

EARLY, LATE = "000001-000001", "000001-000002"


class Logs:
    """The one log."""

    def __init__(self) -> None:
        self._log = HeadLog(DictStore(), "job")
        first = head_log.granted(Place(1, "g", ""), 1, None, 0, None)
        early = head_log.committed(first, EARLY, 1, 1, (100.0, 110.0), False)
        late = head_log.committed(early, LATE, 1, 2, (250.0, 260.0), False)
        # It went back to the early one, with a grant that said otherwise; it ended there unsaved, and then for good.
        again = head_log.granted(Place(4, "", ""), 2, EARLY, 2, late)
        unsaved, over = head_log.unsaved(again), head_log.ended(again, Done(0, "exited"), 900.0)
        for number, entry in enumerate((first, early, late, again, unsaved, over), 1):
            self._log.append(dataclasses.replace(entry, number=number, nonce=str(number)))

    def log(self, _: str) -> HeadLog:
        return self._log


@pytest.mark.parametrize(("checkpoint", "seconds"), [(EARLY, 100.0), (LATE, 250.0), (None, 0.0)])
def test_it_is_what_the_commit_said(checkpoint: str | None, seconds: float) -> None:
    shell = Apply.__new__(Apply)
    shell.heads, shell.clock = Logs(), ManualClock(NOW)  # type: ignore[assignment]
    head = shell._granting(Grant(JobId("job"), AttemptNumber(3), 6, checkpoint, 2, "again"), "n")
    assert (head.number, head.checkpoint, head.cpu_seconds) == (7, checkpoint, seconds)
