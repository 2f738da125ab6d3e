"""Two jobs through everything that Compute Engine does to a VM: one fits into a notice of 30 seconds, the other doesn't."""

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
# Each step makes all of its 450 MB new, so nothing of an earlier save is of use to the last one.
HEAVY = PROGRAM.replace("os.urandom(1 << 20) * 24", "os.urandom(450 << 20)").replace(
    "    table[i * 4096 % len(table)] = h[0]\n", "    table[:] = os.urandom(len(table))\n"
)


def test_what_fits_drains_and_what_does_not_goes_on_from_its_last_image(made: terraformed.Runs, tmp_path: Path) -> None:
    with surf(tmp_path, link=LINK, run=made["defaults"], notice_seconds=0) as world:
        small, heavy = world.submit(6000), world.submit(90, pause=0.2, text=HEAVY, name="heavy", memory_bytes=2 << 30)
        tell(world, small, heavy)
        for job in (small, heavy):
            ended = world.wait_end(job, 600)
            assert (ended["state"], ended["exit_code"]) == ("succeeded", 0)
            world.assert_identical(job)
            world.assert_one_owner(job)
        world.wait(lambda: not world.left(), "VMs, disks and uploads gone")
        refused = {a for a in world.gce.identity.asked if not a.allowed and a.account == CONTROLLER}
        assert not refused, "the rights that Terraform gives suffice"


def tell(world: Surf, small: str, heavy: str) -> None:
    """The story, each event when what came before it has been dealt with."""
    for job in (heavy, small):
        saved(world, job)
    first, cut = runs(world, small, 1), runs(world, heavy, 1)
    world.preempt(first["instance"], NOTICE_SECONDS)
    world.preempt(cut["instance"], NOTICE_SECONDS)
    second = runs(world, small, 2)
    runs(world, heavy, 2)
    assert (drained(world, small, first), drained(world, heavy, cut)) == (True, False)

    # The zone is exhausted: another one is found.
    world.gce.cloud.spot_exhausted.add((second["zone"], KIND))
    saved(world, small)
    world.preempt(second["instance"], NOTICE_SECONDS)
    third = runs(world, small, 3)
    assert third["market"] == "spot" and third["zone"] != second["zone"]

    # Spot is exhausted everywhere: a standard VM, and back as soon as there is some.
    world.gce.cloud.spot_exhausted.update((zone, KIND) for zone in ZONES)
    saved(world, small)
    world.preempt(third["instance"], NOTICE_SECONDS)
    assert runs(world, small, 4)["market"] == "on-demand"
    world.gce.cloud.spot_exhausted.clear()
    assert runs(world, small, 5)["market"] == "spot"


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
