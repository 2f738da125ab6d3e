"""Results that were published stay reachable, whatever becomes of the job later."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from spotsurfer_wire.messages import Done, Head, HeadKind
from support.saves import a_head

from spotsurfer.store.job_output import published

GOOD, BAD, CLOSED = Done(0, "exited", {"x": 1}), Done(7, "exited", {"log": 1}), Done(None, "cancelled")


def log(*ends: Done | None) -> Sequence[Head]:
    """One attempt after the other; None = the cloud took its machine, or it still runs."""
    entries: list[Head] = []
    for epoch, done in enumerate(ends, 1):
        entries.append(a_head(len(entries) + 1, HeadKind.GRANT, epoch, None, 0))
        if done is not None:
            entries.append(a_head(len(entries) + 1, HeadKind.DONE, epoch, None, 0, done=done))
    return entries


@pytest.mark.parametrize(
    ("ends", "epoch"),
    [
        ([], None),
        ([None], None),
        ([GOOD], 1),
        ([BAD], 1),
        ([BAD, None], None),
        ([BAD, GOOD], 2),
        ([GOOD, None], 1),
        ([GOOD, CLOSED], 1),
        ([GOOD, BAD], 2),
        ([GOOD, BAD, CLOSED], 1),
        ([CLOSED], None),
    ],
)
def test_which_end_has_the_results_that_count(ends: list[Done | None], epoch: int | None) -> None:
    found = published(log(*ends))
    assert (found.epoch if found is not None else None) == epoch
