"""A job that the kernel killed for want of memory did not end: the agent says so, and it goes on elsewhere with more."""

from __future__ import annotations

import dataclasses
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest
from spotsurfer_agent.engines.job_host import KILLED, JobHost, lost_if_killed
from spotsurfer_agent.engines.marks import Marks
from spotsurfer_agent.host.cgroup import JobCgroup
from spotsurfer_agent.ports.engine import Status, WorkloadState
from spotsurfer_wire.linux.cgroups import UNIFIED
from spotsurfer_wire.messages import AgentState as S
from spotsurfer_wire.messages import NearMiss
from support.agent_world import World, running

FAILED = Status(WorkloadState.EXITED, 137)
MISS = NearMiss(1 << 30, 1 << 30, 1 << 30, killed=True)


@pytest.fixture(params=["memory", UNIFIED], ids=["v1", "v2"])
def group(request, tmp_path):
    return JobCgroup({request.param: str(tmp_path), "freezer": str(tmp_path)} if request.param else {UNIFIED: str(tmp_path)})


def tell(tmp_path, kills: int) -> None:
    (tmp_path / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")
    (tmp_path / "memory.events").write_text(f"low 0\nhigh 3\nmax 9\noom 1\noom_kill {kills}\n")
    for name in ("memory.max_usage_in_bytes", "memory.peak"):
        (tmp_path / name).write_text(f"{900 << 20}\n")


def test_a_command_that_failed_after_a_kill_is_lost_and_not_over(group, tmp_path):
    tell(tmp_path, 1)
    seen = lost_if_killed(FAILED, group)
    assert (seen.state, seen.exit_code, seen.lost_because) == (WorkloadState.LOST, None, KILLED)
    assert seen.near_miss is not None
    assert (seen.near_miss.killed, seen.near_miss.used_bytes) == (True, 900 << 20)
    assert seen.near_miss.machine_bytes > 0


def test_one_of_an_older_kernel_tells_what_it_can(group, tmp_path):
    tell(tmp_path, 1)
    for name in ("memory.max_usage_in_bytes", "memory.peak"):
        (tmp_path / name).unlink()
    for name in ("memory.usage_in_bytes", "memory.current"):
        (tmp_path / name).write_text("7\n")
    seen = lost_if_killed(FAILED, group)
    assert seen.near_miss is not None
    assert seen.near_miss.used_bytes == 7


@pytest.mark.parametrize(
    ("status", "kills"),
    [
        (FAILED, 0),  # it failed by itself
        (dataclasses.replace(FAILED, exit_code=0), 1),  # it did without what was killed
        (Status(WorkloadState.RUNNING), 1),  # it may yet
    ],
)
def test_anything_else_is_what_it_was(group, tmp_path, status, kills):
    tell(tmp_path, kills)
    assert lost_if_killed(status, group) == status


def test_where_no_memory_is_counted_nothing_is_said(tmp_path):
    assert lost_if_killed(FAILED, JobCgroup({"freezer": str(tmp_path)})) == FAILED
    assert lost_if_killed(FAILED, JobCgroup({UNIFIED: str(tmp_path / "gone")})) == FAILED


def test_a_shim_of_before_tells_no_kill(tmp_path):
    pressed = dataclasses.asdict(MISS)
    del pressed["killed"]
    told = {"phase": "running", "cpu_baseline": 0.0, "exit_code": None, "held": False, "log": {}, "pending_final": None}
    for said, near_miss in ({"pressed": pressed}, dataclasses.replace(MISS, killed=False)), ({}, None):
        host: Any = object.__new__(JobHost)
        host.folder, host.marks, host._last = tmp_path, Marks(tmp_path), Status(WorkloadState.ABSENT)
        host.shim = SimpleNamespace(
            ask=lambda _, said=said: {**told, **said},
            cgroup=lambda: JobCgroup({UNIFIED: "/gone"}),
            keep_to_part=lambda **_: None,
            memory_bytes=lambda: 1 << 30,
        )
        assert host.status().near_miss == near_miss


def test_the_attempt_ends_and_its_report_says_why(tmp_path):
    world = World(tmp_path)
    machine = running(world)
    world.until(lambda: machine.shim.worked > 5)
    agent = machine.agent
    assert agent is not None
    machine.shim.near_miss, machine.shim.phase, machine.shim.lost_because = MISS, WorkloadState.LOST, KILLED
    world.until(lambda: agent.over)
    report = world.report(1)
    assert (report.state, report.near_miss, report.pressed) == (S.BROKEN, MISS, False)
    assert (report.error, report.error_kind) == (KILLED, "lost")
    assert not world.heads()[-1].final
    assert world.heads()[-1].done is None


def test_the_end_of_the_command_is_awaited_and_not_looked_for():
    host = JobHost.__new__(JobHost)
    with subprocess.Popen(["/bin/sleep", "0.3"]) as command:
        vars(host)["shim"] = SimpleNamespace(ask=lambda _: {"root_pid": command.pid})
        assert not host.await_end(0.01)
        assert host.await_end(20.0)
    assert host.await_end(20.0), "it is gone, and its shim does not say so yet"
