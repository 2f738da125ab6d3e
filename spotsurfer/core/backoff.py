"""A job that ends its own machines gets the next one later each time, and in the end is held: each of them costs money."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from spotsurfer.core.case import Case
from spotsurfer.core.ownership import tried_since
from spotsurfer.model.job import HOLDS, OVER
from spotsurfer.model.job import AttemptState as A

FIRST_SECONDS = 30.0  # after the second machine in a row; doubled with each further one
MOST_SECONDS = 1800.0


def setbacks(own: Sequence[Case]) -> list[Case]:
    """The newest machines in a row that had the job and ended without one checkpoint, newest first.

    Those that the cloud took, or that left for another reason, don't count: they say nothing about the job. What can't be
    restored or started is counted elsewhere.
    """
    found: list[Case] = []
    for c in reversed(own):
        a = c.attempt
        if a.granted_at is None or not (a.state in OVER or a.state in (A.LOST, A.RELEASING) or c.gone):
            continue
        if _saved(c) or not tried_since(c.seen.job, a):
            break
        taken = a.reclaimed or c.noticed or (c.instance is not None and c.instance.reclaimed)
        if not (taken or a.drained or a.gave_way_to or a.restore_failed or a.restore_refused or a.store_failed):
            found.append(c)
    return found


def _saved(case: Case) -> bool:
    """Its machine made a checkpoint, or the command ended there by itself."""
    return case.head is not None and case.attempt.number in case.head.worked


def not_before(own: Sequence[Case]) -> datetime | None:
    """When the job may have its next machine; None = now."""
    found = setbacks(own)
    if len(found) < 2:
        return None
    wait = min(FIRST_SECONDS * 2.0 ** min(len(found) - 2, 16), MOST_SECONDS)
    newest = found[0]
    return (newest.now if newest.state in HOLDS else newest.attempt.since) + timedelta(seconds=wait)


def said(own: Sequence[Case]) -> str:
    """What happened, in half a sentence."""
    found = setbacks(own)
    return f"{len(found)} machines in a row ended under the job before it was saved; the last: {found[0].attempt.reason}"
