"""The whole road with a small job: moves, notices, losses, limits; always the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsurfer_providers.local import manual_control
from support.fleet import MARKS, Fleet, fleet

pytestmark = MARKS


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("road")) as made:
        yield made


def test_undisturbed(world: Fleet) -> None:
    job = world.submit(40)
    assert world.wait_end(job)["exit_code"] == 0
    world.assert_identical(job)


def test_a_users_move(world: Fleet) -> None:
    job = world.submit(200)
    world.wait_line(job, 20)
    world.client.post(f"/v1/jobs/{job}/move", {})
    assert world.wait_end(job)["moves"] == 1
    world.assert_identical(job)
    world.assert_one_owner(job)


def test_a_notice(world: Fleet) -> None:
    job = world.submit(200)
    world.wait_line(job, 20)
    manual_control.reclaim(world.data, world.box(job, 1), 20)
    assert world.wait_end(job)["moves"] == 1
    assert [m["data"]["kind"] for m in world.moments(job, "notice")] == ["interruption"]
    world.assert_identical(job)


def test_gone_without_a_word(world: Fleet) -> None:
    job = world.submit(200)
    world.wait(lambda: world.moments(job, "saved"), "a checkpoint")
    manual_control.reclaim(world.data, world.box(job, 1), 0)
    assert world.wait_end(job)["moves"] == 1
    world.assert_identical(job)
    world.assert_one_owner(job)


def test_suspend_and_resume(world: Fleet) -> None:
    job = world.submit(150)
    world.wait_line(job, 20)
    world.client.post(f"/v1/jobs/{job}/hold")
    world.wait(lambda: world.show(job)["state"] == "held", "the suspension")
    world.wait(lambda: world.show(job)["attempts"][0]["state"] == "released", "the machine's end")
    world.client.post(f"/v1/jobs/{job}/resume")
    world.wait_end(job)
    world.assert_identical(job)


def test_a_failing_command_keeps_its_code_and_log_and_its_retries(world: Fleet) -> None:
    job = world.submit(20, code=7, retries=1)
    ended = world.wait_end(job)
    assert (ended["state"], ended["exit_code"]) == ("failed", 7)
    assert sum(1 for a in ended["attempts"] if a["granted_at"]) == 2
    assert len(world.output(job).splitlines()) == 20


def test_three_at_once_each_surfing(world: Fleet) -> None:
    jobs = [world.submit(500, name=f"three-{i}") for i in range(3)]
    for job in jobs:
        world.wait_line(job, 20)
        world.client.post(f"/v1/jobs/{job}/move", {})
    for job in jobs:
        world.wait_state(job, "running", 2)
        manual_control.reclaim(world.data, world.box(job, 2), 20)
    for job in jobs:
        assert world.wait_end(job)["moves"] == 2
        world.assert_identical(job)


def test_cancel_leaves_nothing(world: Fleet) -> None:
    job = world.submit(400)
    world.wait_line(job, 10)
    world.client.post(f"/v1/jobs/{job}/cancel")
    assert world.wait_end(job)["state"] == "cancelled"


def test_a_job_is_held_before_its_budget_is_passed_and_its_hook_runs(world: Fleet, tmp_path: Path) -> None:
    told = tmp_path / "told"
    hook = ["/bin/sh", "-c", f'echo "$SPOTSURFER_JOB $SPOTSURFER_JOB_STATE" >> {told}']
    # A machine of 35,000 micro-dollars an hour: 2,917 for the reserve to drain it, 583 as soon as it is launched (a minute).
    job = world.submit(2000, budget_usd_micros=3_300, on_end=hook)
    world.wait(lambda: world.show(job)["state"] == "held", "the job held for money", 90)
    assert "budget" in world.show(job)["reason"]
    world.wait(lambda: world.show(job)["attempts"][-1]["state"] == "released", "the machine's end")
    assert sum(a["usd_micros"] for a in world.show(job)["attempts"]) <= 3_300
    world.wait(told.exists, "the hook")
    assert told.read_text() == f"{job} held\n"
    world.client.post(f"/v1/jobs/{job}/cancel")
    world.wait_end(job)
