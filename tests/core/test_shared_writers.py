"""Two jobs that write one file on a shared file system: one of them is held, with the file and the other one's name."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from spotsurfer_policies.offer_choice import Cheapest
from support.builders import NOW, a_job, a_snapshot, an_attempt, seen

from spotsurfer.core.decide import decide
from spotsurfer.core.facts.shared_writers import rivals
from spotsurfer.model.actions import SetWish
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import JobId, Wish
from spotsurfer.model.snapshot import JobSeen

FILE = "nas:/lab/out/table.csv"


def writer(name: str, later: int = 0, state: A = A.RUNNING, writes: tuple[str, ...] = (FILE,)) -> JobSeen:
    job = replace(a_job(), id=JobId(name), submitted_at=NOW + timedelta(seconds=later))
    return seen([replace(an_attempt(state=state), job=job.id)], job=job, writes=writes)


def test_the_one_that_came_first_stays() -> None:
    found = rivals([writer("b", 5), writer("a"), writer("c", 6, writes=("nas:/lab/out/other.csv",))])
    assert found.keys() == {"b"}
    assert FILE in found[JobId("b")]
    assert "which a has open" in found[JobId("b")]


def test_one_that_waits_does_not_start_while_another_one_writes_its_file() -> None:
    assert rivals([writer("a", state=A.RELEASED), writer("b", 5)]).keys() == {"a"}
    assert not rivals([writer("a", state=A.RELEASED), writer("b", 5, A.RELEASED)])


def test_nobody_is_held_for_files_of_its_own() -> None:
    assert not rivals([writer("a"), writer("b", writes=()), writer("c", writes=(FILE + "x",))])


def test_it_is_held() -> None:
    actions = decide(a_snapshot(writer("a"), writer("b", 5)), Cheapest(stay_seconds=300.0, margin=0.1), NOW).actions
    held = [a for a in actions if isinstance(a, SetWish)]
    assert [(a.job, a.wish) for a in held] == [("b", Wish.HOLD)]
    assert "Give each a file of its own" in held[0].reason
