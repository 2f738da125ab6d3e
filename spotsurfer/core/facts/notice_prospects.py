"""What notices of the usual lengths would do to a running job if they came now. Pure.

The agent decides by the same function (`spotsurfer_wire.final_save_forecast.prospect`) when the notice is there.
"""

from __future__ import annotations

from collections.abc import Sequence

from spotsurfer_wire.final_save_forecast import Prospect, prospect
from spotsurfer_wire.messages import AgentState, Report

from spotsurfer.ports.service import Foretold

# What clouds give: AWS, and Google at most (the early notice); Google by default; and none, as when hardware fails.
NOTICE_SECONDS = (120.0, 30.0, 0.0)


def foretold(r: Report) -> Sequence[Foretold]:
    """By the newest report of the job's agent; nothing if the job does not run there."""
    if r.state not in (AgentState.RUNNING, AgentState.SAVING) or not r.protection:
        return ()
    return [_foretold(r, notice) for notice in NOTICE_SECONDS]


def _foretold(r: Report, notice: float) -> Foretold:
    saving = r.state is AgentState.SAVING
    what = Prospect.LOST if r.protection == "none" else prospect(r.fit, notice, saving=saving, memory_bytes=r.memory_bytes)
    unsaved = r.save_age_seconds
    lost = None if unsaved is None else unsaved + notice  # it runs until the end
    return Foretold(notice, what, 0.0 if what is Prospect.SAVED else lost, measured=r.fit is not None)
