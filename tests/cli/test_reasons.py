"""`why`: why a job waits, is where it is, or moved, in sentences, and what was not taken."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from cli.conftest import Call
from support.fake_service import START, FakeService, an_attempt

from spotsurfer.cli import printing, reasons
from spotsurfer.cli.reasons import REJECTED_TOLD
from spotsurfer.model.job import AttemptState, HeldBy, JobState, Wish
from spotsurfer.ports.service import Why

COOLS = "left alone until 12:10:00 UTC: no capacity"
DONE = (
    "spot local/local-a/m6i.large: the present machine is gone",
    "instance seen: the machine is in the cloud's listing",
    "drain: attempt 2 stands by on local/local-a/m6i.large: its user asked for a move",
    "terminate: drained",
)


@pytest.fixture
def decided(controller: FakeService, monkeypatch: pytest.MonkeyPatch) -> list[Why]:
    """Decisions as `why` is answered with; a test may change them."""
    rejected = tuple((f"spot aws/eu-1{zone}/m6i.large", COOLS) for zone in "abc")
    found = [
        Why(
            START,
            DONE,
            (("on-demand aws/eu-1a/m6i.large", "it costs 0.0960 USD an hour, its price_max_usd is 0.0500"), *rejected),
            "",
        ),
        Why(START + timedelta(seconds=5), (), (), "limits.instances_max = 4 machines are in use"),
        Why(START + timedelta(seconds=9), ("agent ready: the agent stands by", "terminate: drained"), (), ""),
    ]
    monkeypatch.setattr(controller, "why", lambda _job, last=10: found[-last:])
    return found


def be(controller: FakeService, job: str, phase: str, note: str, *attempts: object, **changes: object) -> None:
    controller.change(job, **changes)
    status = replace(controller.statuses[job], phase=phase, note=note, attempts=list(attempts))  # type: ignore[arg-type]
    controller.statuses[job] = status


def test_where_it_is_why_it_moved_and_what_was_not_taken(
    job: str, controller: FakeService, decided: list[Why], call: Call
) -> None:
    name = controller.statuses[job].job.id
    gone = replace(an_attempt(name, 1, AttemptState.RELEASED), reason="no report for 13 s")
    here = replace(an_attempt(name, 2), purpose="the present machine is gone", pause_seconds=12.0)
    be(controller, job, "running", "", controller.status(gone), controller.status(here))
    assert [" ".join(line.split()) for line in call("why", job).out.splitlines()] == [
        "It is running: its command runs.",
        "It has #2, spot m6i.large in local-a (local) at 0.0300 USD an hour since 2026-03-01 12:00:00 UTC: its machine is "
        "gone.",
        "It went from #1 to #2: its machine is gone (#1 ended: it did not report for 13 s); it stood still for 12s.",
        "",
        "Not taken when this was decided last:",
        "WHAT WHY",
        "on-demand m6i.large in eu-1a (aws) it costs 0.0960 USD an hour, its price_max_usd is 0.0500",
        f"spot m6i.large in eu-1a (aws) and 2 more {COOLS}",
        "",
        "Decisions:",
        "2026-03-01 12:00:00 UTC Chose spot m6i.large in local-a (local), because its machine is gone",
        "Is saved now and leaves its machine: machine #2 is ready: its user asked for a move",
        "2026-03-01 12:00:05 UTC It waits: limits.instances_max = 4 machines are in use",
        "2026-03-01 12:00:09 UTC The machine is ready",
    ]


@pytest.mark.parametrize(
    ("phase", "note", "changes", "said"),
    [
        ("queued", "limits.gpus_max is 8: 8 are in use", {}, "It waits for a machine: limits.gpus_max is 8: 8 are in use."),
        ("queued", "", {}, "It waits for a machine: the next look at the market chooses one."),
        (
            "held",
            "over its budget",
            {"state": JobState.HELD, "wish": Wish.HOLD},
            "It is paused: over its budget. `spotsurfer resume asm-000000` lets it go on.",
        ),
        (
            "suspended",
            "idle since 12:00",
            {"state": JobState.HELD, "held_by": HeldBy.IDLE},
            "It sleeps without a machine: idle since 12:00. It wakes when somebody connects to it, or by `resume`.",
        ),
        ("failed", "exit code 3", {"state": JobState.FAILED}, "It has failed: exit code 3."),
        ("succeeded", "", {"state": JobState.SUCCEEDED}, "It has succeeded."),
        (
            "queued",
            "grant to attempt 3: attempt 2 may still run: wait until it is gone or silent for 4 s more",
            {},
            "It waits for a machine: handing the job to machine #3: machine #2 may still run: wait until it is gone or "
            "it has said nothing for 4 s more.",
        ),
    ],
)
def test_a_job_without_a_machine(
    job: str,
    controller: FakeService,
    decided: list[Why],
    call: Call,
    phase: str,
    note: str,
    changes: dict[str, object],
    said: str,
) -> None:
    be(controller, job, phase, note, **changes)
    assert call("why", job).out.splitlines()[0] == said


def test_all_of_it_on_request(job: str, controller: FakeService, decided: list[Why], call: Call) -> None:
    told = call("why", "-v", job).out
    assert "The machine starts up" in told and "The machine is given back" in told
    assert told.count(f"not taken: spot m6i.large in eu-1b (aws): {COOLS}") == 1


def test_many_reasons_stay_few_lines(job: str, decided: list[Why], call: Call) -> None:
    decided.append(Why(START, (), tuple((f"spot aws/eu-1a/m{n}.large", f"reason {n}") for n in range(20)), ""))
    told = call("why", job).out
    assert f"reason {REJECTED_TOLD - 1}" in told and f"reason {REJECTED_TOLD}\n" not in told
    assert f"{20 - REJECTED_TOLD} more reasons; `why -v` has all" in told


@pytest.mark.parametrize("columns", [80, 160])
def test_it_breaks_no_words(job: str, decided: list[Why], call: Call, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setattr(printing, "width", lambda: columns)
    decided[0] = replace(decided[0], done=("spot local/local-a/m6i.large: " + "reasons " * 40,))
    lines = call("why", job).out.splitlines()
    assert max(map(len, lines)) <= columns
    assert " ".join(lines).count("reasons") == 40
    assert any(line.startswith(f"{'':<25}reasons") for line in lines), "what follows hangs below the sentence's beginning"


def test_a_reason_that_says_for_what_it_waits_is_a_sentence_by_itself() -> None:
    why = "it waits for 1 of 4 licences vcs: held by a"
    decision = {"done": [], "note": why, "rejected": []}
    assert reasons.decided(decision, steps=False) == ["It waits for 1 of 4 licences vcs: held by a"]
