"""From Terraform's output through what Compute Engine does to VMs, with a notice of 30 seconds, to an identical end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from spotsurfer_wire.messages import HeadKind
from support.fleet import MARKS, PROGRAM
from support.gce import terraformed
from support.gce.cloud import ZONES
from support.gce.fleet import Surf, surf
from support.gce.server import CONTROLLER

pytestmark = [*MARKS, pytest.mark.slow, pytest.mark.timeout(1500)]
KIND = "n2-standard-2"
NOTICE_SECONDS = 30.0  # without the early notice
MOVE_SECONDS = 240.0  # the longest wait for a VM to take over, or to save, on a host that does much else
LINK = 100_000_000  # bits a second: 375 MB take 30 seconds
# Each step changes each page of its 450 MB, so nothing of an earlier save is of use to the last one.
TABLE, WRITE = "table = bytearray(os.urandom(1 << 20) * 24)\n", "    table[i * 4096 % len(table)] = h[0]\n"
BEGIN = 'to, h = os.fdopen(write, "w", buffering=1), b"begin"\n'
HEAVY = (
    PROGRAM.replace(TABLE, "")
    .replace(BEGIN, f"{BEGIN}table = bytearray(os.urandom(450 << 20))\n")  # of one process alone
    .replace(WRITE, "    table[::4096] = h[:1] * (len(table) // 4096)\n")
)
assert all(part in PROGRAM for part in (TABLE, WRITE, BEGIN))


def test_what_fits_drains_and_what_does_not_goes_on_from_its_last_image(made: terraformed.Runs, tmp_path: Path) -> None:
    with surf(tmp_path, link=LINK, run=made["defaults"], notice_seconds=0) as world:
        small, heavy = world.submit(4000), world.submit(900, pause=0.2, text=HEAVY, name="heavy", memory_bytes=2 << 30)
        for job in (heavy, small):
            saved(world, job)
        first, cut = runs(world, small, 1), runs(world, heavy, 1)
        world.preempt(first["instance"], NOTICE_SECONDS)
        world.preempt(cut["instance"], NOTICE_SECONDS)
        runs(world, small, 2)
        runs(world, heavy, 2)
        assert (drained(world, small, first), drained(world, heavy, cut)) == (True, False)
        ends_well(world, small, heavy)


def test_exhausted_zones_a_standard_vm_and_back(made: terraformed.Runs, tmp_path: Path) -> None:
    with surf(tmp_path, run=made["defaults"]) as world:
        job, exhausted = world.submit(2600), world.gce.cloud.spot_exhausted
        first = runs(world, job, 1)
        assert first["market"] == "spot"

        # The zone is exhausted: another one is found.
        exhausted.add((first["zone"], KIND))
        saved(world, job)
        world.preempt(first["instance"], NOTICE_SECONDS)
        second = runs(world, job, 2)
        assert second["market"] == "spot" and second["zone"] != first["zone"]

        # Spot is exhausted everywhere: a standard VM, and back as soon as there is some.
        exhausted.update((zone, KIND) for zone in ZONES)
        saved(world, job)
        world.preempt(second["instance"], NOTICE_SECONDS)
        assert runs(world, job, 3)["market"] == "on-demand"
        exhausted.clear()
        assert runs(world, job, 4)["market"] == "spot"
        assert len(world.gce.cloud.made) == 4, "a refusal is no VM, and no order was carried out twice"
        ends_well(world, job)


def ends_well(world: Surf, *jobs: str) -> None:
    """Identical, nothing left over, and the rights that Terraform gives sufficed."""
    for job in jobs:
        ended = world.wait_end(job, 600)
        assert (ended["state"], ended["exit_code"]) == ("succeeded", 0)
        world.assert_identical(job)
        world.assert_one_owner(job)
    world.wait(lambda: not world.left(), "VMs, disks and uploads gone")
    assert not {a for a in world.gce.identity.asked if not a.allowed and a.account == CONTROLLER}


def runs(world: Surf, job: str, least: int) -> dict[str, Any]:
    """The attempt that runs, from number `least` on: refused orders have numbers, too."""

    def found() -> dict[str, Any] | None:
        shown = world.show(job)
        assert shown["state"] not in ("succeeded", "failed"), "it ended before the story did"
        running = [a for a in shown["attempts"] if a["state"] == "running"]
        return running[0] if running and shown["moves"] >= least - 1 else None

    attempt: dict[str, Any] = world.wait(found, f"VM {least} of {job}", MOVE_SECONDS)
    return attempt


def saved(world: Surf, job: str) -> None:
    """Until the VM that runs has saved once: then it knows how long that takes."""

    def has() -> bool:
        return any(a["saves"] for a in world.show(job)["attempts"] if a["state"] == "running")

    world.wait(has, f"a checkpoint of {job}", MOVE_SECONDS)


def drained(world: Surf, job: str, attempt: dict[str, Any]) -> bool:
    """Whether the attempt ended with a final save."""
    own = [e for e in world.head(job) if e.kind is HeadKind.COMMIT and e.epoch == attempt["number"]]
    return any(e.final for e in own)
