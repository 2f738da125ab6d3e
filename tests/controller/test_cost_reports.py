"""The cost report from the database: reports of agents, use, the timeline, rehearsals, and the month."""

from __future__ import annotations

from datetime import timedelta

import pytest
from spotsurfer_wire.messages import AgentState, Report
from spotsurfer_wire.usage import Window
from support.builders import JOB, NOW, a_job, an_attempt

from spotsurfer.controller.history.cost_reports import report
from spotsurfer.ledger.cost_report import Period
from spotsurfer.ledger.costs import Costs
from spotsurfer.ledger.facts import Rules
from spotsurfer.model.cost_report import Saving, Use
from spotsurfer.model.errors import UsageError
from spotsurfer.model.job import AttemptState, JobId, Parent
from spotsurfer.model.market import Market, Offer, Pool
from spotsurfer.ports.service import Moment
from spotsurfer.state import jobs, observations, timeline, usage_history
from spotsurfer.state.db import open_database

HOUR = timedelta(hours=1)
OFFERS = [
    Offer(Pool("one", "r", "z", name), Market.ON_DEMAND, price, price, 2, gib << 30)
    for name, gib, price in (("small", 1, 10_000), ("right", 4, 50_000), ("big", 16, 200_000))
]


def test_what_is_known_of_a_job_is_in_its_report() -> None:
    engine, costs, begin = open_database(None), Costs(Rules()), NOW - 10 * HOUR
    job = a_job({"idle_seconds": 600.0}, owner="ann")
    rehearsal = a_job(id=JobId("try"), parent=Parent(JOB, "000001-000001", rehearsal=True))
    ended = an_attempt(
        *(1, AttemptState.RELEASED),
        launched_at=begin,
        granted_at=begin + timedelta(minutes=3),
        released_at=begin + HOUR,
        reclaimed=True,
    )
    runs = an_attempt(2, launched_at=NOW - 2 * HOUR, granted_at=NOW - 2 * HOUR)
    trial = an_attempt(1, AttemptState.RELEASED, job=rehearsal.id, token="t", launched_at=begin, released_at=begin + HOUR)
    said = Report(
        "job", 1, "i", "0", 1, AgentState.RUNNING, 1, frozen_seconds=9.0, restore_seconds=20.0, save_age_seconds=300.0
    )
    window = Window(1, 10.0, 1.5, 2.0, 3 << 30, 0, 0, 2 << 30, 0, 0)
    with engine.begin() as c:
        for one in (job, rehearsal):
            jobs.add_job(c, one)
        for attempt in (ended, runs, trial):
            jobs.add_attempt(c, attempt)
        observations.set_usage(c, said, begin + HOUR)
        usage_history.add(c, JOB, 1, [(begin, window)])
        for minutes, kind, data in (
            (60, "wish", {"wish": "hold", "held_by": "idle"}),
            (61, "ended", {"state": "held"}),
            (121, "ended", {"state": "active"}),
        ):
            timeline.add(c, Moment(begin + timedelta(minutes=minutes), JOB, None, kind, "", dict(data)))
        found = report(c, costs, OFFERS, None, Period(None, None, NOW), "owner")
        alone = report(c, costs, OFFERS, [job, rehearsal], Period(None, None, NOW), "")
        with pytest.raises(UsageError, match="ends before it begins"):
            report(c, costs, (), None, Period(NOW, NOW - HOUR, NOW), "")
    seconds = {a.use: round(a.seconds) for a in found.uses}
    assert seconds == {
        Use.WORK: 3420 - 20 - 9 - 300 + 7200,
        Use.WAITING: 180,
        Use.RESTORE: 20,
        Use.FREEZE: 9,
        Use.REPEATED: 300,
        Use.REHEARSAL: 3600,
    }
    assert [g.group for g in found.groups] == ["ann"]
    assert next(s for s in found.savings if s.cause is Saving.IDLE).usd_micros == ended.list_price_usd_micros_per_hour
    lasting = found.alternatives[1]
    assert lasting.usd_micros == -(-50_000 * (seconds[Use.WORK] + 180 + 3600) // 3600)
    assert "one/z/right" in lasting.how
    assert found.forecast is not None
    assert found.forecast.usd_micros_per_hour == runs.price_usd_micros_per_hour
    assert (alone.usd_micros, alone.forecast) == (found.usd_micros, None)
