"""What `--wait` waits for, and how it says that what it waited for can not come any more."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from cli.conftest import Call
from support.fake_service import FakeService, an_attempt

from spotsurfer.cli import follow
from spotsurfer.cli.commands import job_control
from spotsurfer.model.errors import MoveFailed, RestoreRefused
from spotsurfer.model.job import AttemptState, HeldBy, Job, JobState, Wish


def once_submitted(controller: FakeService, then: Callable[[str], None]) -> None:
    """Do something to the job soon after it was made, however long that takes here."""

    def wait() -> None:
        while not controller.statuses:
            time.sleep(0.05)
        time.sleep(0.4)
        then(next(iter(controller.statuses)))

    threading.Thread(target=wait, daemon=True).start()


def test_waiting_for_a_job_that_succeeds(controller: FakeService, call: Call) -> None:
    once_submitted(controller, lambda job: controller.end(job, JobState.SUCCEEDED, 0))
    result = call("submit", "--wait", "--json", "--", "prog")
    assert result.code == 0, result.err
    assert json.loads(result.out)["state"] == "succeeded"


def test_waiting_for_a_job_that_is_held_ends_and_says_why(controller: FakeService, call: Call) -> None:
    """Over its budget, or with a user whom no machine knows: it waited for ever."""

    def hold(job: str) -> None:
        controller.change(job, state=JobState.HELD, wish=Wish.HOLD, reason="over its budget")

    once_submitted(controller, hold)
    result = call("submit", "--wait", "--name", "asm", "--", "prog")
    assert result.code == 41
    assert "is held: over its budget." in result.err and "spotsurfer resume asm" in result.err


def test_waiting_goes_on_while_a_job_sleeps_that_comes_back_by_itself(controller: FakeService, call: Call) -> None:
    def sleeps(name: str) -> None:
        controller.change(name, state=JobState.HELD, wish=Wish.HOLD, held_by=HeldBy.IDLE)
        threading.Timer(0.6, lambda: controller.end(name, JobState.SUCCEEDED, 0)).start()

    once_submitted(controller, sleeps)
    assert call("submit", "--wait", "--", "prog").code == 0


def test_waiting_has_a_limit(controller: FakeService, call: Call) -> None:
    result = call("submit", "--wait", "--timeout", "0.3", "--", "prog")
    assert result.code == 42
    assert "has not ended within 0.3 seconds; it goes on" in result.err
    assert call("submit", "--wait", "--timeout", "soon", "--", "prog").code == 2


def test_waiting_for_a_job_that_fails_says_its_code(controller: FakeService, call: Call) -> None:
    once_submitted(controller, lambda job: controller.end(job, JobState.FAILED, 3, "exited"))
    result = call("submit", "--wait", "--name", "asm", "--", "prog")
    assert result.code == 16
    assert "asm-000000 failed with exit code 3: exited" in result.err
    assert "#1   Submitted: asm" in result.err, "the timeline is told meanwhile"


def test_a_checkpoint_that_fails_says_why(job: str, controller: FakeService, call: Call) -> None:
    controller.on_checkpoint = lambda name, _: controller.say(name, "alert", "No space left.", error_kind="save")
    result = call("checkpoint", job, "--wait")
    assert result.code == 17
    assert "the job runs on: No space left." in result.err


def test_move_waits_until_it_runs_elsewhere(job: str, controller: FakeService, call: Call) -> None:
    assert call("move", job, "--to", "r6i.large", "--market", "on-demand").code == 0
    asked = controller.statuses[job].job.move
    assert asked is not None
    assert (asked.instance_type, asked.market) == ("r6i.large", "on-demand")

    def moved(name: str, number: int) -> None:
        new = controller.status(an_attempt(controller.statuses[name].job.id, 2, for_move=number))
        controller.statuses[name] = replace(controller.statuses[name], attempts=[*controller.statuses[name].attempts, new])

    controller.on_move = moved
    result = call("move", job, "--wait")
    assert result.code == 0, result.err
    assert "runs on m6i.large (spot, local-a)" in result.out


def test_a_move_that_fails_says_why(job: str, controller: FakeService, call: Call) -> None:
    def failed(name: str, number: int) -> None:
        attempt = replace(an_attempt(controller.statuses[name].job.id, 2, AttemptState.RELEASING, number), reason="refused")
        controller.statuses[name] = replace(controller.statuses[name], attempts=[controller.status(attempt)])
        controller.change(name, move=None)
        controller.say(name, "wish", "the move failed, the job runs on: disk full")

    controller.on_move = failed
    result = call("move", job, "--wait")
    assert result.code == 17
    assert "disk full" in result.err


def test_a_move_of_a_job_that_ends_meanwhile_says_so(job: str, controller: FakeService, call: Call) -> None:
    """The machine that was ordered for it is given back then, with a reason that says nothing of the move."""

    def ended(name: str, number: int) -> None:
        attempt = an_attempt(controller.statuses[name].job.id, 2, AttemptState.RELEASING, number)
        attempt = replace(attempt, reason="the job does not need a machine any more")
        controller.statuses[name] = replace(controller.statuses[name], attempts=[controller.status(attempt)])
        controller.end(name, JobState.SUCCEEDED, 0)

    controller.on_move = ended
    result = call("move", job, "--wait")
    assert result.code == 17
    assert (
        result.err.strip()
        .partition(" See ")[0]
        .endswith(f"{job} did not move: it ended before it could (succeeded with exit code 0).")
    )


@pytest.mark.parametrize(
    ("marks", "code"),
    [
        ({}, 17),
        ({"restore_failed": True}, 36),
        ({"restore_refused": True}, 37),
        ({"restore_failed": True, "restore_refused": True}, 37),
    ],
)
def test_each_kind_of_failure_has_its_exit_code(marks: dict[str, bool], code: int) -> None:
    older = {"restore_failed": True, "restore_refused": False}
    attempt = {"restore_failed": False, "restore_refused": False, **marks}
    assert job_control.failure([older, attempt] if marks else [attempt]).exit_code == code


def test_a_resume_that_is_waited_for_says_how_it_ended() -> None:
    tried = {"state": "released", "restore_failed": False, "restore_refused": True}
    there = {"state": "running", "instance_type": "t", "market": "spot", "zone": "z"}
    held = [{"kind": "ended", "data": {"state": "held"}}]
    job: dict[str, object] = {"id": "j", "attempts": [tried], "reason": "no avx"}
    assert job_control._resumed(job, [], 0) is None
    assert job_control._resumed({**job, "attempts": [tried, there]}, [], 0) == "t (spot, z)"
    with pytest.raises(RestoreRefused, match="held again: no avx"):
        job_control._resumed(job, held, 0)


def test_a_job_that_runs_and_can_not_be_saved_first_does_not_go_back() -> None:
    job: dict[str, object] = {"id": "j", "attempts": [], "reason": ""}
    moments = [{"kind": "wish", "text": "going back to 000001-000002 failed, the job runs on: disk full", "data": {}}]
    with pytest.raises(MoveFailed, match="j did not go back: going back to 000001-000002 failed, the job runs on: disk full"):
        job_control._resumed(job, moments, 0)


@pytest.mark.parametrize(("protection", "code"), [("criu", 17), ("none", 38)])
def test_a_suspension_whose_save_failed_is_not_waited_for(
    protection: str, code: int, job: str, controller: FakeService, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_control, "current", lambda _: {"protection": protection})

    def asked(name: str) -> Job:
        controller.say(name, "alert", "No space left.", error_kind="save")
        return controller.statuses[name].job

    monkeypatch.setattr(controller, "hold", asked)
    result = call("suspend", job, "--wait")
    assert result.code == code
    assert "tried again every minute, until `resume`: No space left." in result.err


@pytest.mark.parametrize("order", ["move", "checkpoint"])
def test_waiting_for_what_a_held_job_does_not_do_ends(order: str, job: str, controller: FakeService, call: Call) -> None:
    """It stood for an hour."""

    def held(name: str, _: int) -> None:
        controller.change(name, state=JobState.HELD, wish=Wish.HOLD, reason="over its budget")
        controller.say(name, "ended", "held: over its budget", state="held")

    controller.on_move = controller.on_checkpoint = held
    result = call(order, job, "--wait", "--timeout", "3")
    assert result.code == 17
    assert f"is held: over its budget. `spotsurfer resume {job}` lets it go on." in result.err


def test_a_move_that_a_suspension_put_an_end_to_says_so(job: str, controller: FakeService, call: Call) -> None:
    def suspended(name: str, _: int) -> None:
        controller.change(name, move=None, wish=Wish.HOLD, reason="over its budget")
        controller.say(name, "wish", "over its budget")

    controller.on_move = suspended
    result = call("move", job, "--wait", "--timeout", "3")
    assert result.code == 17
    assert "did not move: it is suspended: over its budget." in result.err


def test_waiting_tells_why_it_is_not_done_yet_each_sentence_once(job: str, controller: FakeService, call: Call) -> None:
    notes = [
        "no room",
        "no room",
        "2 machines failed; the next one comes in 30 s",
        "2 machines failed; the next one comes in 9 s",
    ]

    def asked(name: str, _: int) -> None:
        for i, note in enumerate(notes):
            threading.Timer(0.6 * i, noted, [name, note]).start()

    def noted(name: str, note: str) -> None:
        controller.statuses[name] = replace(controller.statuses[name], note=note)
        controller.say(name, "wish", "something else")

    controller.on_move = asked
    result = call("move", job, "--wait", "--timeout", "2.5")
    assert result.err.count("waits: no room") == 1
    assert result.err.count("waits: 2 machines failed") == 1


def test_a_suspension_that_was_undone_meanwhile_is_not_waited_for(
    job: str, controller: FakeService, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(name: str) -> Job:
        controller.say(name, "wish", "resume, asked by its user")
        return controller.statuses[name].job

    monkeypatch.setattr(controller, "hold", asked)
    result = call("suspend", job, "--wait", "--timeout", "3")
    assert result.code == 17
    assert "was not suspended: it was told to go on meanwhile" in result.err


def test_a_job_that_was_not_suspended_yet_goes_on_where_it_is() -> None:
    here = {"state": "running", "instance_type": "t", "market": "spot", "zone": "z"}
    job: dict[str, object] = {"id": "j", "attempts": [here], "reason": ""}
    assert job_control._resumed(job, [], 1, may_stay=True) == "t (spot, z)"
    assert job_control._resumed(job, [], 1) is None, "it goes back to a checkpoint: not there"
    assert job_control._resumed({**job, "attempts": [{**here, "state": "draining"}]}, [], 1, may_stay=True) is None


@pytest.mark.parametrize("command", ["checkpoint", "move", "suspend", "resume"])
def test_ctrl_c_ends_the_wait_and_not_the_order(
    command: str, job: str, controller: FakeService, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    if command == "resume":
        controller.change(job, wish=Wish.HOLD, state=JobState.HELD)
    monkeypatch.setattr(follow, "patiently", interrupted)
    result = call(command, job, "--wait")
    assert (result.code, result.out) == (130, "")
    assert result.err == f"The order to {job} stands: `spotsurfer watch {job}` follows it.\nInterrupted.\n"


def test_ctrl_c_ends_the_wait_and_not_the_job(controller: FakeService, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "patiently", interrupted)
    result = call("submit", "--wait", "--", "prog")
    job = next(iter(controller.statuses))
    assert (result.code, result.out) == (130, "")
    assert result.err == f"Submitted {job}.\nJob {job} goes on: `spotsurfer watch {job}` follows it.\nInterrupted.\n"


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt
