"""What a moment records for its words: prices, alternatives, seconds, what was spent."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from simulation.chances import calm
from simulation.world import World
from support.builders import JOB, NOW, a_job, a_snapshot, an_attempt, an_offer, seen
from support.desk import Versions

from spotsurfer.common.timeline_words import say
from spotsurfer.config.settings import Settings
from spotsurfer.controller import wiring
from spotsurfer.controller.effects import passed_over
from spotsurfer.controller.event_recorder import EventRecorder
from spotsurfer.ledger.costs import Costs
from spotsurfer.model.actions import Rejected
from spotsurfer.model.job import JobId
from spotsurfer.ports.service import Moment
from spotsurfer.state import jobs as rows
from spotsurfer.state import timeline
from spotsurfer.state.db import open_database
from spotsurfer.store.agent_reports import Reports


def told(world: World) -> list[Moment]:
    with world.engine.connect() as connection:
        return [m for _, m in timeline.read(connection, world.ids[0], 0)]


@pytest.fixture(scope="module")
def life() -> list[Moment]:
    """A job that its user moves once, and that ends well; two thousandths of a dollar are spent at any time."""
    world = World(3, jobs=1, work=120, chances=calm())
    world.loop.apply.spent = lambda _: 2_000
    world.until_running()
    assert world.run(limit=60) == "stuck"
    world.commands.move(world.ids[0], None, None)
    assert world.run() == "ok"
    return told(world)


def only(moments: list[Moment], kind: str, **data: object) -> Moment:
    return next(m for m in moments if m.kind == kind and data.items() <= m.data.items())


def test_a_life_has_what_its_words_need(life: list[Moment]) -> None:
    planned = only(life, "planned")
    assert planned.data["usd_micros_per_hour"] and planned.data["market"] == "spot"
    assert "rejected" in only(life, "planned", rejected=None).data
    first, again = (m for m in life if m.data.get("event") == "workload started")
    assert "restore_seconds" not in first.data
    assert (say("attempt", first.text, first.data).inner, say("attempt", again.text, again.data).inner) == (False, True)
    assert 0 < again.data["restore_seconds"] < 60  # type: ignore[operator]
    moved = only(life, "moved")
    assert moved.data["usd_micros"] == 2_000 and moved.data["pause_seconds"]
    assert only(life, "attempt", to="released").data["usd_micros"] == 2_000
    assert only(life, "ended", state="succeeded").data["usd_micros"] == 2_000
    end = only(life, "ended")
    assert say(end.kind, end.text, end.data).text.endswith("; 0.0020 USD so far")


def test_the_alternatives_to_a_choice_are_few_words() -> None:
    assert passed_over([]) == ""
    rejected = [Rejected(JOB, f"spot a/b/m{n}", "no capacity") for n in (1, 1, 2, 3, 4)]
    assert passed_over(rejected) == "spot a/b/m1 (no capacity); spot a/b/m2 (no capacity); 2 more"


def test_a_step_in_the_price_is_a_moment() -> None:
    engine, reports = open_database(None), Reports(Versions())
    with engine.begin() as c:
        rows.add_job(c, a_job())
        rows.add_attempt(c, an_attempt(1))
    recorder = EventRecorder(engine)
    for price in (30_000, 45_000, 45_000):
        observer = SimpleNamespace(changed=reports.listen(NOW), reports=reports, interruptions=None)
        snapshot = a_snapshot(seen([an_attempt(1)]), offers=[an_offer(price=price)])
        recorder.attend(snapshot.jobs)
        recorder.record(observer, snapshot, NOW)  # type: ignore[arg-type]
    with engine.connect() as c:
        (one,) = [m for _, m in timeline.read(c, None, 0)]
    assert (one.kind, one.job, one.attempt) == ("price", JOB, 1)
    assert say(one.kind, one.text, one.data).text == "The price of its machine rose from 0.0300 to 0.0450 USD an hour"


class Priced(Costs):
    """Other costs than at the start."""

    def __init__(self) -> None:
        pass

    def of_job(self, job: JobId) -> int:
        return 7


def test_the_controller_knows_what_was_spent(tmp_path: Path) -> None:
    controller = wiring.build(Settings(controller={"data_dir": str(tmp_path / "data")}))  # type: ignore[arg-type]
    try:
        assert controller.loop.apply.spent(JOB) == 0
        controller.loop._observer.costs = Priced()
        assert controller.loop.apply.spent(JOB) == 7, "a reload of [costs] puts other costs in their place"
    finally:
        controller.stop()


def test_an_old_moment_has_words_too() -> None:
    old = Moment(datetime(2026, 1, 1, tzinfo=UTC), JOB, 1, "ended", "held: over its budget", {"state": "held"})
    assert say(old.kind, old.text, old.data).text == "Paused: over its budget"
