"""What is foretold of 120 s of notice, of 30 s and of none, for ten shapes of jobs; and what they do, in virtual time.

`boxes/test_notices.py` does the same for real.
"""

from __future__ import annotations

import pytest
from simulation.shaped import JOB, ShapedWorld
from spotsurfer_wire.final_save_forecast import Prospect
from support.notice_shapes import NOTICES, SHAPES, Shape, became

from spotsurfer.core.facts.notice_prospects import foretold

SEEN_SECONDS = 15  # from what happens in the job to the forecast of its agent


def ready(shape: Shape, notice: float) -> ShapedWorld:
    """The job runs and has as many checkpoints as it should have."""
    world = ShapedWorld(shape, notice)
    began = world.first.now
    for number, at in enumerate(shape.saves, start=1):
        while world.first.now < began + at:
            world.run(limit=1)
        world.commands.checkpoint(JOB)
        for _ in range(200):
            world.run(limit=1)
            if world.commits() >= number:
                break
        assert world.commits() == number
    if shape.grows:
        world.first.grow()
    return world


def told(world: ShapedWorld, notice: float) -> Prospect | None:
    return next((f.outcome for f in foretold(world.report()) if f.notice_seconds == notice), None)


@pytest.mark.parametrize("notice", NOTICES)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.name)
def test_what_was_foretold_is_what_happens(shape: Shape, notice: float) -> None:
    world, expected = ready(shape, notice), shape.outcome(notice)
    for _ in range(SEEN_SECONDS):
        world.run(limit=1)
        if told(world, notice) is expected:
            break
    assert told(world, notice) is expected, world.report().fit
    world.reclaim()
    worked = world.first.work
    for _ in range(int(notice) + 120):
        world.run(limit=1)
        if world.runs_elsewhere():
            break
    assert became(world.heads()) is expected
    if expected is Prospect.LOST and notice:
        margin = world.first.config.drain_margin_seconds
        assert world.first.work - worked == pytest.approx(notice - margin, abs=2.0), (
            "it ran on, and did not stand still in vain"
        )
    world.end()
