"""The groups of job and tools, as the agent's threads see them."""

from __future__ import annotations

from pathlib import Path

import pytest
from spotsurfer_agent.host.cgroup import JobCgroup
from spotsurfer_agent.host.tools import Tools
from spotsurfer_agent.shim.client import ShimClient


def test_who_asks_for_the_groups_while_they_are_made_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop asks for the job's state all the time; on a busy machine it took away what a restore was just making."""
    wanted = JobCgroup({"freezer": str(tmp_path / "group")})
    monkeypatch.setattr(JobCgroup, "below_own", staticmethod(lambda *_: wanted))
    made, keeper = JobCgroup.create, ShimClient(tmp_path, Tools((), (), (), (), "", ()))
    (tmp_path / "job").mkdir()

    def create(group: JobCgroup) -> None:
        keeper.cgroup()
        made(group)

    monkeypatch.setattr(JobCgroup, "create", create)
    keeper._make_groups(1)
    assert keeper.cgroup() == wanted
    assert Path(keeper.tool_group().freezer).is_dir()
