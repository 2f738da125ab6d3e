"""Why a rehearsal can't come to life is told in the words of its machine."""

from __future__ import annotations

import pytest
from spotsurfer_wire.messages import AgentState, Report
from support.builders import a_job, ago, an_attempt

from spotsurfer.controller.checkpoints.rehearsal import _failed
from spotsurfer.model.job import AttemptState as A


@pytest.mark.parametrize("kind", ["input", "image", "lost"])
def test_what_no_machine_would_avoid_is_no_loss_of_a_machine(kind: str) -> None:
    why = "out/a.bin was rewritten, and its 9 bytes were too many to keep"
    report = Report("j", 1, "i", "0", 1, AgentState.BROKEN, 1, error=why, error_kind=kind)
    attempt = an_attempt(1, A.RESTORING, granted_at=ago(5), reason="it was given up")
    assert _failed(a_job(), attempt, report) == why
    assert "rehearse again" in _failed(a_job(), attempt, None)
