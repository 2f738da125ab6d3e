"""Machines of the test EC2 that boot: cloud-init, systemd, the agent's unit, and what happens to machines.

No file for `make test`: `vm/trial.py` names these tests, and `make test-vm` runs them one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.ec2.fleet import LIVING, Surf, surf
from support.fleet import MARKS, PROGRAM
from vm.guest import Guest
from vm.hardware import guest_of
from vm.trial import SECONDS, WELL

pytestmark = [*MARKS, pytest.mark.timeout(SECONDS)]
NEW, OLD, NEXT_RELEASE = "m6i.large", "m5.large", "c6i.large"  # what they boot as: vm/hardware.py
NOTICE_SECONDS = 120.0
STEPS = 1000
# It takes its time until it finds itself on another boot: then it hurries to its end. That changes nothing that it prints.
BOOT = 'open("/proc/sys/kernel/random/boot_id").read()'
HURRIES = PROGRAM.replace("for i in range(steps):", f"first = {BOOT}\nfor i in range(steps):", 1).replace(
    "    time.sleep(pause)", f"    if {BOOT} == first: time.sleep(pause)"
)


@contextmanager
def world(path: Path, *types: str) -> Iterator[Surf]:
    """A controller that may have these types, the first the cheapest; a failure tells what the machines say."""
    with surf(path, module="vm.hardware", interval="60s", instance_types=list(types)) as made:
        for number, name in enumerate(types):
            made.cloud.order("price", pool=f"*/{name}", usd=f"0.0{number + 3}")
        try:
            yield made
        except BaseException:
            print(made.explain())
            for m in made.cloud.machines(*LIVING):
                print(f"== {m['id']}\n" + guest(made, m["id"]).ask(LAST_WORDS, 60)[1])
            raise


LAST_WORDS = "tail -n 30 /var/log/cloud-init-output.log; journalctl --no-pager -n 60 -u spotsurfer-agent; systemctl --failed"


def guest(made: Surf, instance: str) -> Guest:
    """The guest that is this instance."""
    return guest_of(made.state, instance, made.machine(instance)["type"])


def begun(made: Surf, steps: int = STEPS) -> str:
    """A job that runs and was saved live."""
    job = made.submit(steps, pause=1.0, text=HURRIES)
    made.wait_line(job, 3, 90)
    made.wait(lambda: made.moments(job, "saved"), "a live save", 60)
    return job


def ended(made: Surf, job: str, machines: int) -> None:
    """It ended as if nothing had been, and as many machines had it."""
    found = made.wait_end(job, 120)
    assert (found["state"], found["exit_code"]) == ("succeeded", 0)
    assert len({a["instance"] for a in found["attempts"] if a["granted_at"]}) == machines
    made.assert_identical(job)
    made.assert_one_owner(job)
    made.wait(lambda: not made.left(), "machines, volumes and uploads gone")


@pytest.mark.parametrize("kind", [NEW, NEXT_RELEASE])
def test_a_start(tmp_path: Path, kind: str) -> None:
    with world(tmp_path, kind) as made:
        job = begun(made, 200)
        code, said = guest(made, made.instance(job)).ask(WELL.command, 120)
        assert code == 0, said
        ended(made, job, 1)


def test_a_planned_move(tmp_path: Path) -> None:
    with world(tmp_path, NEW) as made:
        job = begun(made)
        made.client.post(f"/v1/jobs/{job}/move", {})
        ended(made, job, 2)


def test_a_notice(tmp_path: Path) -> None:
    with world(tmp_path, NEW) as made:
        job = begun(made)
        first = made.instance(job)
        made.cloud.order("interrupt", instance=first, notice_seconds=NOTICE_SECONDS)
        ended(made, job, 2)
        assert [m["data"]["kind"] for m in made.moments(job, "notice")] == ["interruption"]
        # It went on from its final save: nothing was computed twice.
        granted, final = made.moments(job, "granted")[-1], made.moments(job, "saved")[-1]
        assert granted["data"]["checkpoint"] == final["data"]["checkpoint"]


def test_a_machine_that_vanishes(tmp_path: Path) -> None:
    with world(tmp_path, NEW) as made:
        job = begun(made)
        made.cloud.order("crash", instance=made.instance(job))
        ended(made, job, 2)


def test_a_reboot(tmp_path: Path) -> None:
    """The agent's unit starts again. Its machine has lost the job, which goes on from its last live save, here or elsewhere."""
    with world(tmp_path, NEW) as made:
        job = begun(made)
        guest(made, made.instance(job)).ask("systemctl reboot", 60)
        made.wait(lambda: len(made.moments(job, "granted")) > 1, "another grant", 90)
        found = made.wait_end(job, 120)
        assert (found["state"], found["exit_code"]) == ("succeeded", 0)
        made.assert_identical(job)
        made.assert_one_owner(job)


def test_an_older_processor(tmp_path: Path) -> None:
    """The cheapest machine after a notice is too old: it says so while it stands by, and another type is taken."""
    with world(tmp_path, NEW, OLD) as made:
        job = begun(made)
        made.price(f"*/{OLD}", "0.01")
        made.cloud.order("interrupt", instance=made.instance(job), notice_seconds=NOTICE_SECONDS)
        ended(made, job, 2)
        [refused] = [a for a in made.show(job)["attempts"] if a["instance_type"] == OLD]
        assert "cpu instructions" in refused["reason"], refused
        assert refused["granted_at"] is None, refused
