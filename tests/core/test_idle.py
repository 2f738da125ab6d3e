"""When a job is idle: windows of usage, connections, and what may not be suspended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from spotsurfer_policies.offer_choice import Cheapest
from spotsurfer_wire.usage import Window
from support.builders import NOW, a_head, a_job, a_snapshot, ago, an_agent, an_attempt, seen

from spotsurfer.core.decide import decide
from spotsurfer.core.scheduling.suspension import followed, works
from spotsurfer.model.actions import SetWish
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import HeldBy, JobSpec, MoveRequest, Parent, Wish
from spotsurfer.model.snapshot import QuietSeen

SPEC = {"idle_seconds": 600.0}
QUIET = QuietSeen(ago(700), ago(5), 0.004)
SAVED = a_head(1, 3, checkpoint="000001-000001", sequence=1)
RUNS = an_attempt(1, since=ago(5000))


def window(cpu: float, gpu: float | None = None, seconds: float = 10.0) -> Window:
    return Window(1, seconds, cpu, cpu, 0, 0, 0, 0, 0, 0, gpu_share=gpu)


def at_work(spec: JobSpec) -> Callable[[Window], bool]:
    return partial(works, spec)


def decided(quiet: QuietSeen | None = QUIET, spec: dict[str, Any] = SPEC, **changes: Any) -> SetWish | None:
    job = a_job(spec, **changes.pop("job", {}))
    agent = an_agent(**{"protection": "criu", **changes.pop("agent", {})})
    world = seen([changes.pop("attempt", RUNS)], SAVED, job=job, agents={1: agent}, quiet=quiet)
    actions = decide(a_snapshot(world), Cheapest(60, 0.2), NOW).actions
    return next((a for a in actions if isinstance(a, SetWish)), None)


def test_after_its_time_it_is_suspended_with_the_numbers() -> None:
    wish = decided()
    assert wish is not None
    assert (wish.wish, wish.held_by) == (Wish.HOLD, HeldBy.IDLE)
    assert wish.reason == f"idle since {QUIET.since:%H:%M:%S} UTC: 0.004 processors in use"
    assert decided(spec={"idle_seconds": 720.0}) is None, "not yet"
    assert decided(spec={}) is None, "nobody asked for it"


@pytest.mark.parametrize(
    "change",
    [
        {"quiet": None},
        {"quiet": replace(QUIET, connections=1)},
        {"quiet": replace(QUIET, last_closed_at=ago(300))},
        {"quiet": replace(QUIET, until=ago(300))},
        {"attempt": replace(RUNS, since=ago(300))},
        {"attempt": an_attempt(1, A.RESTORING, since=ago(5000))},
        {"job": {"resumed_at": ago(300)}},
        {"job": {"move": MoveRequest(1, NOW)}},
        {"job": {"parent": Parent(a_job().id, "000001-000001", rehearsal=True)}},
        {"agent": {"protection": "none"}},
        {"agent": {"error_kind": "save"}},
        {"spec": {"idle_seconds": 600.0, "engine": "none"}},
    ],
)
def test_what_keeps_it_awake(change: dict[str, Any]) -> None:
    assert decided() is not None
    assert decided(**change) is None


def test_windows_say_since_when() -> None:
    spec = a_job(SPEC).spec
    at = [NOW + timedelta(seconds=10 * i) for i in range(6)]
    quiet = followed(None, zip(at, map(window, (0.01, 0.03, 0.02)), strict=False), at_work(spec))
    assert quiet is not None
    assert (quiet.since, quiet.until) == (at[0], at[3])
    assert quiet.cpu_cores == pytest.approx(0.02)
    worked = followed(quiet, [(at[3], window(0.5)), (at[4], window(0.0))], at_work(spec))
    assert worked is not None
    assert (worked.since, worked.until) == (at[4], at[5])


def test_gpus_that_work_are_work() -> None:
    spec = a_job(SPEC).spec
    quiet = followed(None, [(NOW, window(0.0, 0.9)), (NOW + timedelta(seconds=10), window(0.0, 0.01))], at_work(spec))
    assert quiet is not None
    assert quiet.since == NOW + timedelta(seconds=10)
    assert quiet.gpus_known
    wish = decided(replace(QUIET, gpus_known=True), {**SPEC, "ports": (object(),)})
    assert wish is not None
    assert wish.reason.endswith("its GPUs did nothing, nobody was connected")


def test_gpus_that_nobody_sees_are_at_work() -> None:
    later = NOW + timedelta(seconds=10)
    quiet = followed(None, [(NOW, window(0.0)), (later, window(0.0))], at_work(a_job({**SPEC, "gpus": 1}).spec))
    assert quiet is not None
    assert quiet.since == later + timedelta(seconds=10), "neither window is rest"
    without = followed(None, [(NOW, window(0.0))], at_work(a_job(SPEC).spec))
    assert without is not None
    assert without.since == NOW, "a job without GPUs has none to be seen"


def test_a_window_that_is_told_again_counts_once_and_may_have_turned_out_busy() -> None:
    spec, later = a_job(SPEC).spec, NOW + timedelta(seconds=10)
    quiet = followed(None, [(NOW, window(0.0)), (later, window(0.0, seconds=6))], at_work(spec))
    assert quiet is not None
    assert followed(quiet, [(NOW, window(0.0))], at_work(spec)) == quiet
    busy = followed(quiet, [(NOW, window(0.0)), (later, window(0.4))], at_work(spec))
    assert busy is not None
    assert busy.since == later + timedelta(seconds=10)


def test_what_was_not_told_is_no_rest() -> None:
    spec, late = a_job(SPEC).spec, NOW + timedelta(seconds=400)
    quiet = followed(None, [(NOW, window(0.0)), (late, window(0.0))], at_work(spec))
    assert quiet is not None
    assert quiet.since == late
    assert followed(None, [(NOW, window(0.0, seconds=1))], at_work(spec)) is None
