"""Going back, copies, rehearsals and collection, with real agents in boxes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.fleet import CONFIG, MARKS, Fleet, fleet

from spotsurfer.cli import follow
from spotsurfer.model.errors import SpotsurferError

pytestmark = MARKS
KEEP = "[retention]\nnewest = 1\nwait = 1\nevery = 0.3\n"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("shelf"), interval=2, config=CONFIG.replace("[agent]", KEEP + "[agent]")) as made:
        yield made


def listed(world: Fleet, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = world.client.get(f"/v1/jobs/{job}/checkpoints")["checkpoints"]
    return found


def saved(world: Fleet, job: str, count: int) -> list[dict[str, Any]]:
    world.wait(lambda: len(world.moments(job, "saved")) >= count, f"{count} checkpoints of {job}")
    return world.moments(job, "saved")


def sound(world: Fleet, job: str | None = None) -> None:
    checked = follow.follow(world.client, "/v1/store/check", {"job": job, "read": True})
    assert checked["damage"] == []
    assert checked["checkpoints"] > 0


def test_a_rehearsal_proves_and_old_checkpoints_go(world: Fleet) -> None:
    job = world.submit(400)
    saved(world, job, 2)
    assert not any(c["proven"] for c in listed(world, job))
    assert all(c["keep"] for c in listed(world, job))
    done = follow.follow(world.client, f"/v1/jobs/{job}/rehearsals")
    assert done["cpu_seconds"] > 0
    assert done["printed_bytes"] > 0
    assert [m["data"]["alive"] for m in world.moments(job, "rehearsed")] == [True]
    world.wait(lambda: world.moments(job, "dropped"), "old checkpoints to go")
    rehearsal = done["rehearsal"]
    world.wait(lambda: world.show(rehearsal)["attempts"][0]["state"] == "released", "the end of the rehearsal")
    assert rehearsal not in [j["id"] for j in world.client.get("/v1/jobs")["jobs"]]
    lines = world.client.get("/v1/costs", job=job)["costs"]
    assert any(x["ended"].startswith("a rehearsal") and x["job"] == job for x in lines)
    world.wait(lambda: not list((world.data / "store/jobs" / rehearsal).rglob("*.json")), "nothing of it to be left")
    sound(world, job)
    world.wait_end(job)
    world.assert_identical(job)
    assert world.show(job)["moves"] == 0


def test_a_copy_goes_its_own_way(world: Fleet) -> None:
    job = world.submit(250)
    saved(world, job, 1)
    made = follow.follow(world.client, f"/v1/jobs/{job}/forks", {"name": "twin"})
    twin = made["job"]
    world.steps[twin] = 250
    for one in (job, twin):
        assert world.wait_end(one)["exit_code"] == 0
        world.assert_identical(one)
    assert world.show(twin)["name"] == "twin"
    sound(world)


def test_back_after_the_end_and_from_a_running_job(world: Fleet) -> None:
    job = world.submit(200)
    first = saved(world, job, 1)[0]["data"]["checkpoint"]
    world.client.put(f"/v1/jobs/{job}/checkpoints/{first}/protection", {})
    printed = len(world.output(job).splitlines())
    world.wait_line(job, printed + 40)
    world.client.post(f"/v1/jobs/{job}/go-back", {"checkpoint": first})
    world.wait_state(job, "running", 2)
    assert world.show(job)["attempts"][1]["from_checkpoint"] == first
    world.wait_end(job)
    world.assert_identical(job)
    world.client.post(f"/v1/jobs/{job}/go-back", {"checkpoint": first})
    assert world.show(job)["state"] == "active"
    world.wait_state(job, "running", 3)
    world.wait_end(job)
    world.assert_identical(job)
    assert first in [c["id"] for c in listed(world, job)]


def test_damage_is_found_and_an_older_checkpoint_taken(world: Fleet) -> None:
    job = world.submit(300)
    saved(world, job, 2)
    world.client.post(f"/v1/jobs/{job}/hold")
    world.wait(lambda: world.show(job)["state"] == "held", "the suspension")
    newest = world.show(job)["checkpoint"]
    manifest = world.data / "store/jobs" / job / "checkpoints" / newest / "MANIFEST"
    written = manifest.read_bytes()
    manifest.write_bytes(written[:-1] + bytes([written[-1] ^ 1]))  # a fixed byte would be the right one now and then
    checked = follow.follow(world.client, "/v1/store/check", {"job": job})
    assert [d["checkpoint"] for d in checked["damage"]] == [newest]
    world.client.post(f"/v1/jobs/{job}/resume")
    world.wait_end(job)
    world.assert_identical(job)
    told = [m["text"] for m in world.moments(job, "granted")]
    assert f"the newest, {newest}, could not be restored (" in told[-1]


def test_a_hurt_checkpoint_fails_its_rehearsal_and_the_job_runs_on(world: Fleet) -> None:
    job = world.submit(300)
    saved(world, job, 1)
    newest = world.show(job)["checkpoint"]
    manifest = world.data / "store/jobs" / job / "checkpoints" / newest / "MANIFEST"
    manifest.write_bytes(b"torn")
    with pytest.raises(SpotsurferError, match="can't be copied"):
        follow.follow(world.client, f"/v1/jobs/{job}/rehearsals")
    world.client.post(f"/v1/jobs/{job}/cancel")
    world.wait_end(job)
