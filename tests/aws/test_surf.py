"""A job surfs on the test EC2: the controller, the bootstrap, the agent and the store's rights are the real ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.ec2.fleet import surf
from support.fleet import MARKS

pytestmark = MARKS
# A machine that has drained ends itself; the controller or EC2 may be first.
DRAINED = ("Client.InstanceInitiatedShutdown", "Client.UserInitiatedShutdown", "Server.SpotInstanceTermination")


PATIENCE_SECONDS = 180.0  # for a host that does much else; alone it takes a minute in all


@pytest.mark.timeout(400)
def test_one_job_one_interruption(tmp_path: Path) -> None:
    with surf(tmp_path) as world:
        job = world.submit(120)
        world.wait_line(job, 20, PATIENCE_SECONDS)
        first = world.instance(job)
        assert world.machine(first)["market"] == "spot"
        world.cloud.order("interrupt", instance=first, notice_seconds=20)
        ended = world.wait_end(job, PATIENCE_SECONDS)
        assert (ended["moves"], ended["exit_code"]) == (1, 0)
        assert world.machine(first)["reason"][0] in DRAINED
        # The queue and the machine's own metadata service tell the same notice: it counts once.
        assert [m["data"]["kind"] for m in world.moments(job, "notice")] == ["interruption"]
        world.assert_identical(job)
        world.assert_one_owner(job)
        world.wait(lambda: not world.left(), "machines, volumes and uploads gone")
