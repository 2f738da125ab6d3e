"""From `terraform apply` to one real assembly through everything that EC2 does to a machine, and back to nothing.

The controller has the configuration and the rights that Terraform made; the log of all calls is judged by the policies of this
very run. The result of the job is that of an undisturbed run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import assembly
from support.ec2.fleet import Surf
from support.ec2.terraformed import Made, applied, controller
from support.fleet import MARKS
from support.iam.rights import UNTOUCHED, UNUSED, granted, idle, judged, used

from spotsurfer.demo.environment import RESULT

pytestmark = [*MARKS, pytest.mark.slow, pytest.mark.timeout(1500)]
ZONES = tuple(f"us-east-1{z}" for z in "abc")
TYPE = "m6i.large"
NOTICE_SECONDS = 30.0  # in place of two minutes
MOVE_SECONDS = 240.0  # the longest wait for a machine to take over, or to save, on a host that does much else


def test_apply_surf_destroy(tmp_path: Path) -> None:
    folder, expected = assembly.made(), assembly.undisturbed()
    with applied(tmp_path, rebalance="move") as made:
        made.cloud.order("price", pool=f"*/{TYPE}", usd="0.060")
        for zone, usd in zip(ZONES, ("0.030", "0.031", "0.032"), strict=True):
            made.cloud.order("price", pool=f"{zone}/{TYPE}", usd=usd)
        with controller(tmp_path, made, LIMITS__INSTANCE_TYPES=f'["{TYPE}"]') as world:
            try:
                surf(world, folder, expected)
            except BaseException:
                print(world.explain())
                raise
        rights_suffice_and_are_needed(made)
        made.destroy()


def surf(world: Surf, folder: Path, expected: str) -> None:
    """One job, submitted as a user does it, and its story."""
    job = assembly.submit(world.config, folder)
    world.steps[job] = 0
    tell(world, job)
    ended = world.wait_end(job, 600)
    assert (ended["state"], ended["exit_code"]) == ("succeeded", 0)
    result = b"".join(world.client.download(f"/v1/jobs/{job}/outputs/{RESULT}"))
    assert assembly.digest(result) == expected
    assert [m["data"]["kind"] for m in world.moments(job, "notice")].count("interruption") == 2, "each counted once"
    world.assert_one_owner(job)
    world.wait(lambda: not world.left(), "machines, volumes and uploads gone")
    accounted(world, job)


def rights_suffice_and_are_needed(made: Made) -> None:
    """Each call of each role is allowed; nothing is allowed, or named, that none of them used, but for two explained lists."""
    log, roles = made.cloud.log(), made.roles()
    found = list(judged(log, roles))
    assert {str(line["principal"]["role"]).rpartition("-")[2] for line, _, _ in found} == {"controller", "machines", "job"}
    bad = {f"{line['operation']} {request.resource}: {d.why}" for line, request, d in found if not d.allowed}
    assert bad == set()
    assert granted(roles) - used(log, roles) == set(UNUSED), "grant less, or say why it is needed"
    assert idle(log, roles) == set(UNTOUCHED), "name less, or say why it is needed"


def tell(world: Surf, job: str) -> None:
    """The story, each event when what came before it has been dealt with."""
    first = runs(world, job, 1)
    assert (first["market"], first["zone"]) == ("spot", ZONES[0]), "the cheapest zone"
    saved(world, job)

    world.cloud.order("rebalance", instance=first["instance"])
    second = runs(world, job, 2)
    assert second["market"] == "spot"

    # The two-minute warning while two zones are sold out: the third one is found.
    for zone in ZONES[:2]:
        world.cloud.order("capacity", pool=f"{zone}/*", market="spot", count=0)
    interrupt(world, job, second)
    third = runs(world, job, 3)
    assert (third["market"], third["zone"]) == ("spot", ZONES[2])

    # Spot is sold out everywhere: on-demand, and back as soon as there is some.
    world.cloud.order("capacity", pool="*", market="spot", count=0)
    interrupt(world, job, third)
    fourth = runs(world, job, 4)
    assert fourth["market"] == "on-demand"
    world.cloud.order("capacity", pool="*", market="spot", count=None)
    fifth = runs(world, job, 5)
    assert (fifth["market"], fifth["zone"]) == ("spot", ZONES[2]), "the two others are still sold out"
    saved(world, job)

    # The price of the cheapest pool steps, then its machine is lost without a word: the next one is elsewhere.
    world.price(f"{ZONES[2]}/{TYPE}", "0.020")
    for zone in ZONES[:2]:
        world.cloud.order("capacity", pool=f"{zone}/*", market="spot", count=None)
    world.price(f"{ZONES[2]}/{TYPE}", "0.090")
    world.cloud.order("interrupt", instance=fifth["instance"], notice_seconds=0)
    sixth = runs(world, job, 6)
    assert sixth["market"] == "spot" and sixth["zone"] in ZONES[:2]
    assert world.machine(fifth["instance"])["reason"][0] == "Server.SpotInstanceTermination"


def runs(world: Surf, job: str, least: int) -> dict[str, Any]:
    """The attempt that runs, from number `least` on: refused orders have numbers, too."""

    def found() -> dict[str, Any] | None:
        assert world.show(job)["state"] not in ("succeeded", "failed"), "it ended before the story did"
        running = [a for a in world.show(job)["attempts"] if a["state"] == "running"]
        return next((a for a in running if moves(world, job) >= least - 1), None)

    attempt: dict[str, Any] = world.wait(found, f"machine {least} of {job}", MOVE_SECONDS)
    return attempt


def moves(world: Surf, job: str) -> int:
    return int(world.show(job)["moves"])


def saved(world: Surf, job: str) -> None:
    """Until the machine that runs has saved once."""

    def has() -> bool:
        return any(a["saves"] for a in world.show(job)["attempts"] if a["state"] == "running")

    world.wait(has, "a checkpoint", MOVE_SECONDS)


def interrupt(world: Surf, job: str, attempt: dict[str, Any]) -> None:
    """Once the machine has saved: then it knows how long it may wait for the next one."""
    saved(world, job)
    world.cloud.order("interrupt", instance=attempt["instance"], notice_seconds=NOTICE_SECONDS)


def accounted(world: Surf, job: str) -> None:
    """Every machine is an attempt of the job, and the other way round; no refused order was repeated."""
    made = {m["id"] for m in world.cloud.machines()}
    assert made == {a["instance"] for a in world.show(job)["attempts"] if a["instance"]}
    orders = world.cloud.log("ec2:RunInstances")
    tokens = [c["parameters"]["ClientToken"] for c in orders if c["error"] == "InsufficientInstanceCapacity"]
    assert len(tokens) == len(set(tokens)) > 0, "a refusal reaches our own choice after exactly one call"
    assert len(world.cloud.machines("terminated")) == len(made)
