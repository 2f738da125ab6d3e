"""What `show` says of a job with a deadline, and what it is reckoned from."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from spotsurfer_lab.markets import past_of, records_of_own
from spotsurfer_policies.baselines import make_greedy
from spotsurfer_policies.purchase_surf import make
from support.builders import NOW, POOL, a_snapshot, ago, an_attempt, seen

from spotsurfer.controller.event_recorder import at_risk_seconds, done_seconds
from spotsurfer.controller.history.spot_availability import SpotAvailability, spot_now
from spotsurfer.core.scheduling.deadline_simulation import forecast
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.market import Cooldown, Market
from spotsurfer.ports.policies import Buy, Terms, View
from spotsurfer.state.db import open_database

HOUR = 3600.0
TERMS = Terms(600, 12 * HOUR, 24 * HOUR, 600, 1.0, 3.0)


def view(up: bool | None, elapsed: int = 0, done: float = 0.0) -> View:
    past = (up,) * (elapsed + 1)
    return View(TERMS, elapsed * 600.0, done, Buy.SPOT if up and elapsed else Buy.WAIT, 0.0, past)


def test_a_calm_market_promises_more_than_an_empty_one() -> None:
    calm, empty = forecast(make({}), view(True, 30, 4 * HOUR)), forecast(make({}), view(False, 30))
    assert calm is not None
    assert empty is not None
    assert 8 * HOUR <= calm.seconds < empty.seconds <= 19 * HOUR
    assert calm.low_seconds <= calm.seconds <= calm.high_seconds
    assert calm.usd < empty.usd
    assert calm.fallback_chance < empty.fallback_chance


def test_the_same_view_has_the_same_forecast() -> None:
    assert forecast(make({}), view(True, 3)) == forecast(make({}), view(True, 3))


def test_nothing_is_said_without_an_idea_or_without_time() -> None:
    assert forecast(make_greedy({}), view(True)) is None
    assert forecast(make({}), view(True, 144)) is None


def test_spot_is_known_where_it_runs_and_where_it_is_refused() -> None:
    cool = Cooldown(POOL, Market.SPOT, NOW.replace(hour=13), 1, "no capacity")
    assert spot_now(a_snapshot(seen([an_attempt(1)])), NOW) == {POOL: True}
    assert spot_now(a_snapshot(seen(), cooldowns=[cool]), NOW) == {POOL: False}
    assert spot_now(a_snapshot(seen()), NOW) == {POOL: None}


def test_the_record_survives_a_restart_and_holds_only_changes() -> None:
    engine = open_database(None)
    first = SpotAvailability(engine)
    runs = a_snapshot(seen([an_attempt(1)]))
    for seconds in (300, 200, 100):
        noted = first.noted(runs, ago(seconds))
    assert [(s.at, s.up) for s in noted.spot_seen[POOL]] == [(ago(300), True)]
    again = SpotAvailability(engine).noted(a_snapshot(seen()), NOW)
    assert [(s.at, s.up) for s in again.spot_seen[POOL]] == [(ago(300), True), (NOW, None)]


class Said:
    """The last report of an agent, as far as progress is concerned."""

    def __init__(self, state: str, at_risk: float | None) -> None:
        self.state, self.save_age_seconds, self.restore_seconds = state, at_risk, 10.0


def told(at: datetime, state: str, at_risk: float | None) -> Any:
    return (at, Said(state, at_risk))


def test_progress_is_what_has_not_to_be_done_again() -> None:
    drained = an_attempt(1, A.RELEASED, granted_at=ago(10_000))
    lost = an_attempt(2, A.RELEASED, granted_at=ago(8000))
    runs = an_attempt(3, A.RUNNING, granted_at=ago(1000))
    said = {1: told(ago(9000), "drained", 500.0), 2: told(ago(7000), "running", 300.0), 3: told(ago(5), "running", 60.0)}
    assert done_seconds([drained, lost, runs], said, True, NOW) == pytest.approx(990 + 690 + 990)
    assert done_seconds([drained, lost, runs], said, False, NOW) == pytest.approx(990)
    restoring = replace(runs, state=A.RESTORING)
    assert done_seconds([drained, lost, restoring], {k: v for k, v in said.items() if k < 3}, True, NOW) == pytest.approx(1680)


def test_at_risk_is_what_a_machine_that_goes_without_a_word_takes_along() -> None:
    lost = an_attempt(1, A.RELEASED, granted_at=ago(8000))
    runs = an_attempt(2, A.RUNNING, granted_at=ago(1000))
    said = {1: told(ago(7000), "running", 300.0), 2: told(ago(5), "running", 60.0)}
    assert at_risk_seconds([lost, runs], said, True, NOW) == pytest.approx(65)
    assert at_risk_seconds([lost, runs], said, False, NOW) == pytest.approx(990), "it can't be saved"
    assert at_risk_seconds([lost, runs], {}, True, NOW) == pytest.approx(1000), "it has not said that it saved anything"
    assert at_risk_seconds([lost], said, True, NOW) == 0


def test_own_history_becomes_a_trace() -> None:
    rows = [
        {"pool": "a", "at": "2026-01-01T00:00:00+00:00", "up": True},
        {"pool": "a", "at": "2026-01-01T01:00:00+00:00", "up": None},
        {"pool": "b", "at": "2026-01-01T00:30:00+00:00", "up": False},
    ]
    records = records_of_own(rows, 600.0)
    assert records["a"].tolist() == [1, 1, 1, 1, 1, 1, -1]
    assert records["b"].tolist() == [-1, -1, -1, 0, 0, 0, 0]
    past = past_of(records, 600.0)
    trace, starts = past.trace, past.starts
    assert (trace.pools, trace.up.shape, starts) == (("a", "b"), (7, 2), [0])
    assert trace.up[:, 0].all()
