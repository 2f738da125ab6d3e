"""One job in machines of two clouds, and back: its store lies in one of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_providers.catalog import egress_prices
from support.fleet import MARKS
from support.two_clouds import BOOT, Surf, surf

from spotsurfer.model.prices import GIB

pytestmark = [*MARKS, pytest.mark.slow, pytest.mark.timeout(900)]
PATIENCE_SECONDS = 240.0  # for a host that does much else
NOTICE_SECONDS = 30.0
CHANCE_BYTES = 1 << 20  # in the program's memory: nothing compresses it


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
        assert_transfer_is_billed(world, job)
        world.wait(lambda: not world.left(), "machines, VMs, disks and uploads gone")


def assert_transfer_is_billed(world: Surf, job: str) -> None:
    """What the machine at Google read from S3 and sent there, at the prices of both clouds; nothing for those beside S3."""
    lines, out, back = world.client.get("/v1/costs", job=job)["costs"], *prices()
    (far,) = (line for line in lines if line["pool"].startswith("gcp/"))
    near = [line for line in lines if line["pool"].startswith("aws/")]
    assert [line["transfer_usd_micros"] for line in near] == [0, 0]
    # It read the image of the machine before it, and sent what is new in that for the machine after it.
    assert CHANCE_BYTES < far["transfer_bytes"] < 2 * stored_bytes(world, job)
    low, high = (price * far["transfer_bytes"] / GIB for price in (out, back))
    assert low < far["transfer_usd_micros"] < high, "some of it was read, some sent"
    assert world.show(job)["usd_micros"] == sum(line["usd_micros"] for line in lines)
    shown = subprocess.run(
        [sys.executable, "-m", "spotsurfer", "--config", str(world.config), "report", job], capture_output=True
    )
    assert b"of that transfer" in shown.stdout, shown


def stored_bytes(world: Surf, job: str) -> int:
    """All that the store has of the job."""
    pages = world.cloud.client("s3").get_paginator("list_objects_v2")
    some = pages.paginate(Bucket=world.bucket, Prefix=f"{world.prefix}/jobs/{job}/")
    return sum(int(found["Size"]) for page in some for found in page["Contents"])


def prices() -> tuple[int, int]:
    """Out of S3 to Google and out of Google to S3, micro-dollars a GiB."""
    return egress_prices("aws").internet_usd_micros, egress_prices("gcp").internet_usd_micros


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
