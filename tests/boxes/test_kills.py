"""Kill -9 of the agent, the controller, the job or the box at each step of a move, and of the way back from one that failed.

Four jobs move at once, each with its own victim, so that a step costs as long as one move. Whatever was killed: the job ends
with the bytes of an undisturbed run, or with its own exit code; it had one owner at a time; nothing is left.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from spotsurfer_providers.local import manual_control
from spotsurfer_wire.messages import HeadKind
from support.fleet import MARKS, SHORT_LEASE, Fleet, fleet

from spotsurfer.model.errors import SpotsurferError

pytestmark = MARKS
KILLED = 137  # 128 + SIGKILL: the job's own exit code when somebody killed its command
STEPS = 600  # four machines boot meanwhile, beside four jobs that are saved all the time
Reached = Callable[[Fleet, str], bool]


def state(attempt: int, *wanted: str) -> Reached:
    def reached(world: Fleet, job: str) -> bool:
        return any(a["number"] == attempt and a["state"] in wanted for a in world.show(job)["attempts"])

    return reached


def criu(attempt: int, verb: str) -> Reached:
    def reached(world: Fleet, job: str) -> bool:
        with suppress(LookupError, StopIteration):
            words = world.process(world.box(job, attempt), lambda w: any(x.endswith("/criu") for x in w) and verb in w)
            return words > 0
        return False

    return reached


def either(step: Reached, too_late: Reached) -> Reached:
    """A step that may be shorter than one look: then the kill comes just after it."""
    return lambda world, job: step(world, job) or too_late(world, job)


def planned(world: Fleet, job: str) -> bool:
    return any(m["attempt"] == 2 for m in world.moments(job, "planned"))


def final(world: Fleet, job: str) -> bool:
    return any(e.final for e in world.head(job))


def granted(world: Fleet, job: str) -> bool:
    return world.head(job)[-1].epoch == 2


def given_back(world: Fleet, job: str) -> bool:
    """Its source owns it again, or another machine is bought, for the target had gone on too far."""
    grants = [e.epoch for e in world.head(job) if e.kind is HeadKind.GRANT]
    return grants[-2:] == [2, 1] or len(world.show(job)["attempts"]) > 2


def runs_again(world: Fleet, job: str) -> bool:
    return given_back(world, job) and world.attempt(job, "running") is not None


# Each step of a move, how it is recognised, and the attempt that works at the job then. A step may be over when the kill
# comes: what must hold afterwards holds either way.
MOVE = {
    "the_next_machine_is_planned": (planned, 1),
    "the_next_machine_boots": (state(2, "booting", "ready"), 1),
    "the_drain_was_asked": (either(state(1, "draining"), final), 1),
    "the_job_is_frozen": (either(criu(1, "dump"), final), 1),
    "the_final_checkpoint_is_durable": (final, 1),
    "the_successor_was_granted": (granted, 2),
    "the_job_is_restored": (either(criu(2, "restore"), state(2, "running")), 2),
    "the_source_waits_for_the_target": (either(criu(2, "restore"), state(2, "running")), 1),
    "the_job_runs_again": (state(2, "running"), 2),
}
# Those of the way back: the target's machine vanishes as soon as it owns the job.
BACK = {
    "the_job_was_given_back": (given_back, 1),
    "the_job_runs_where_it_was": (runs_again, 1),
}


def kill_agent(world: Fleet, box: str) -> None:
    world.kill(world.agent_pid(box))


def kill_job(world: Fleet, box: str) -> None:
    world.kill(world.job_pid(box))


def kill_box(world: Fleet, box: str) -> None:
    world.kill(manual_control.box_status(world.data, box)["pid"])


def kill_controller(world: Fleet, box: str) -> None:
    world.kill_controller()
    world.start()


VICTIMS: dict[str, Callable[[Fleet, str], None]] = {
    "agent": kill_agent,
    "job": kill_job,
    "box": kill_box,
    "controller": kill_controller,
}


@pytest.mark.parametrize("step", [*MOVE, *BACK])
def test_kill_when(step: str, tmp_path: Path) -> None:
    reached, attempt = (MOVE | BACK)[step]
    before = [(granted, 2, kill_box)] if step in BACK else []
    with fleet(tmp_path, interval=2, config=SHORT_LEASE) as world:
        jobs = {world.submit(STEPS, name=f"{victim}-dies"): kill for victim, kill in VICTIMS.items()}
        for job in jobs:
            world.wait(lambda job=job: world.moments(job, "saved"), f"the first checkpoint of {job}")
            world.client.post(f"/v1/jobs/{job}/move", {})
        waiting = {job: [*before, (reached, attempt, kill)] for job, kill in jobs.items()}

        def kill_those_that_are_there() -> bool:
            for job, kills in waiting.items():
                with suppress(SpotsurferError, LookupError):
                    if kills and kills[0][0](world, job):
                        _, number, kill = kills.pop(0)
                        with suppress(LookupError, StopIteration):  # the victim may be gone by now
                            kill(world, world.box(job, number))
            return not any(waiting.values())

        world.wait(kill_those_that_are_there, waiting, 60)
        for job in jobs:
            assert_sound(world, job, jobs[job] is kill_job)


def assert_sound(world: Fleet, job: str, was_killed: bool) -> None:
    ended = world.wait_end(job)
    world.assert_one_owner(job)
    if was_killed and ended["state"] == "failed":
        assert ended["exit_code"] == KILLED
        return
    assert (ended["state"], ended["exit_code"]) == ("succeeded", 0), world.explain()
    world.assert_identical(job)
