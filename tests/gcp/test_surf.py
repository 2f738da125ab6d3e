"""A job surfs on the test Compute Engine: the controller, the bootstrap, the agent and the store's rights are the real ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fleet import MARKS
from support.gce.fleet import surf

pytestmark = [*MARKS, pytest.mark.always]
PATIENCE_SECONDS = 180.0  # for a host that does much else; alone it takes a minute in all


@pytest.mark.timeout(400)
def test_one_job_one_preemption(tmp_path: Path) -> None:
    with surf(tmp_path) as world:
        job = world.submit(120)
        world.wait_line(job, 20, PATIENCE_SECONDS)
        first = world.instance(job)
        world.preempt(first, 20.0)
        ended = world.wait_end(job, PATIENCE_SECONDS)
        assert (ended["moves"], ended["exit_code"]) == (1, 0)
        # The subscription and the VM's own metadata server tell the same notice: it counts once.
        assert [m["data"]["kind"] for m in world.moments(job, "notice")] == ["interruption"]
        world.assert_identical(job)
        world.assert_one_owner(job)
        world.wait(lambda: not world.left(), "VMs, disks and uploads gone")
