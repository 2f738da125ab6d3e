"""One job in machines of two clouds, and back: its store lies in one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fleet import MARKS
from support.two_clouds import BOOT, Surf, surf

pytestmark = [*MARKS, pytest.mark.slow, pytest.mark.timeout(900)]
PATIENCE_SECONDS = 240.0  # for a host that does much else
NOTICE_SECONDS = 30.0


def test_a_job_goes_from_aws_to_google_and_back(tmp_path: Path) -> None:
    with surf(tmp_path) as world:
        world.price("*", "0.01")
        job = world.submit(2400)
        first = runs(world, job, "aws")
        world.wait_line(job, 20, PATIENCE_SECONDS)
        saved(world, job)
        world.aws_has(0)
        world.cloud.order("interrupt", instance=first["instance"], notice_seconds=NOTICE_SECONDS)

        second = runs(world, job, "gcp")
        saved(world, job)
        assert [key for key in world.gce.bucket.objects if key.startswith("boot/access/")], f"what it was handed is in {BOOT}"
        assert not [key for key in world.gce.bucket.objects if key.startswith("boot/jobs/")], "the store is in one cloud"
        world.google_is_exhausted()
        world.aws_has(None)
        world.preempt(second["instance"], NOTICE_SECONDS)

        runs(world, job, "aws")
        ended = world.wait_end(job, 2 * PATIENCE_SECONDS)
        assert (ended["state"], ended["exit_code"], ended["moves"]) == ("succeeded", 0, 2)
        world.assert_identical(job)
        world.assert_one_owner(job)
        world.wait(lambda: not world.left(), "machines, VMs, disks and uploads gone")


def runs(world: Surf, job: str, provider: str) -> dict[str, Any]:
    """The attempt that runs, as soon as it is one of this cloud."""

    def found() -> dict[str, Any] | None:
        shown = world.show(job)
        assert shown["state"] not in ("succeeded", "failed"), f"it ended before it was at {provider}"
        running = [a for a in shown["attempts"] if a["state"] == "running"]
        return running[0] if running and running[0]["provider"] == provider else None

    attempt: dict[str, Any] = world.wait(found, f"{job} at {provider}", PATIENCE_SECONDS)
    return attempt


def saved(world: Surf, job: str) -> None:
    """Until the machine that runs has saved once."""

    def has() -> bool:
        return any(a["saves"] for a in world.show(job)["attempts"] if a["state"] == "running")

    world.wait(has, f"a checkpoint of {job}", PATIENCE_SECONDS)
