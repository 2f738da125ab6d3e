"""The cost report: parts that add up, what else would have cost, groups, the forecast."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest
from support.bill_stories import load, names
from support.played_bill import JOB, NOON, NOW, at, attempt, lines_of, played

from spotsurfer.ledger import bill
from spotsurfer.ledger.alternatives import lasting_offer
from spotsurfer.ledger.cost_report import Period, cost_report, forecast, idle_seconds
from spotsurfer.ledger.facts import MachineFacts
from spotsurfer.ledger.time_by_use import MACHINE_KINDS, AttemptFacts, JobFacts, split
from spotsurfer.model.charges import ChargeKind, ChargeLine
from spotsurfer.model.cost_report import CostReport, Saving, Use
from spotsurfer.model.errors import UsageError
from spotsurfer.model.job import InstanceId, JobId, Parent
from spotsurfer.model.market import Market, Offer, Pool
from spotsurfer.ports.service import Moment

ALWAYS = Period(None, None, NOW)


def adds_up(report: CostReport) -> None:
    others = sum(micros for kind, micros in report.kinds.items() if kind not in MACHINE_KINDS)
    assert sum(a.usd_micros for a in report.uses) + others == report.usd_micros
    assert sum(report.kinds.values()) == report.usd_micros
    demand = next(a.usd_micros for a in report.alternatives if a.name == "on demand")
    assert demand is not None
    assert demand - report.usd_micros == sum(s.usd_micros for s in report.savings)
    if report.groups:
        assert sum(g.usd_micros for g in report.groups) == report.usd_micros


def test_paid_time_by_use() -> None:
    report = cost_report(lines_of([played()]), [played()], ALWAYS)
    adds_up(report)
    seconds = {a.use: round(a.seconds) for a in report.uses}
    assert seconds == {
        Use.WORK: (58 * 60 - 300 - 12) + (60 * 60 - 30 - 6) + (60 * 60 - 60),
        Use.WAITING: 120 + 120,  # boots of the first two
        Use.RESTORE: 30 + 60,
        Use.FREEZE: 18,
        Use.REPEATED: 300,
        Use.OVERLAP: 180 + 120,  # the third boots while the second has the job; the second is given back later
    }
    assert (report.repeated_seconds, report.moves) == (300.0, 2)


def test_savings_by_cause() -> None:
    report = cost_report(lines_of([played()]), [played()], ALWAYS)
    saved = {s.cause: s.usd_micros for s in report.savings}
    assert saved[Saving.SPOT] == 96_000 - 30_000  # an hour of the first
    assert saved[Saving.RETURN_TO_SPOT] == (192_000 - 61_000) * 63 // 60
    assert saved[Saving.SIZE] == -96_000 * 63 // 60  # the larger type was not asked for
    assert saved[Saving.OVERHEAD] < 0 == saved[Saving.IDLE] == saved[Saving.OTHERS]


def test_on_demand_is_the_work_one_boot_and_the_idle_time() -> None:
    facts = replace(played(), idle_seconds=3600.0)
    report = cost_report(lines_of([facts]), [facts], ALWAYS)
    adds_up(report)
    work = 58 * 60 - 300 - 12 + 3600 - 36 + 3600 - 60
    seconds = work + 120 + 3600
    demand = report.alternatives[0].usd_micros
    assert demand == -(-96_000 * seconds // 3600)
    assert {s.cause: s.usd_micros for s in report.savings}[Saving.IDLE] == 96_000


def test_spot_without_moves_begins_anew_after_each_machine_that_was_taken() -> None:
    report = cost_report(lines_of([played()]), [played()], ALWAYS)
    again = report.alternatives[2].usd_micros
    work = 58 * 60 - 300 - 12 + 3600 - 36 + 3600 - 60
    rest, paid = 96_000 * 64 / 60 + 61_000 * 63 / 60, 64 * 60 + 63 * 60
    ran = 3600 - 36 + 3600 - 60
    assert again == pytest.approx(30_000 + rest / paid * (paid - ran + work), abs=3)
    assert report.kept_seconds == pytest.approx(58 * 60 - 12 - 300)


def offer(name: str, cpus: int, gib: int, price: int, market: Market = Market.ON_DEMAND) -> Offer:
    return Offer(Pool("aws", "r", "z", name), market, price, price, cpus, gib << 30)


def test_the_cheapest_type_that_would_have_lasted() -> None:
    offers = [
        *(offer("small", 1, 4, 10), offer("slim", 2, 2, 20), offer("right", 2, 4, 30)),
        *(offer("big", 4, 16, 60), offer("spot", 8, 32, 1, Market.SPOT)),
    ]
    found = lasting_offer(played(), offers)
    assert found is not None
    assert found.pool.instance_type == "right"
    assert lasting_offer(replace(played(), peak_memory_bytes=0), offers) is None
    unknown = cost_report(lines_of([played()]), [played()], ALWAYS).alternatives[1]
    assert (unknown.usd_micros, "not known" in unknown.how) == (None, True)


def test_a_period_takes_its_days_alone_and_days_add_up() -> None:
    facts = JobFacts(played().job, [AttemptFacts(attempt(1, 0, 5, 3 * 1440))])
    lines = lines_of([facts])
    whole = cost_report(lines, [facts], ALWAYS, by="day")
    days = [cost_report([x for x in lines if x.begins.day == day], [facts], ALWAYS) for day in range(10, 14)]
    assert [g.group for g in sorted(whole.groups, key=lambda g: g.group)] == [f"2026-11-{d}" for d in range(10, 14)]
    assert sum(d.usd_micros for d in days) == whole.usd_micros
    for use in (Use.WORK, Use.WAITING):
        parts = sum(a.seconds for d in days for a in d.uses if a.use is use)
        assert parts == pytest.approx(next(a.seconds for a in whole.uses if a.use is use))


def test_a_rehearsal_is_paid_by_its_parent_and_no_work() -> None:
    child = JobId("asm-1-rehearsal")
    copy = replace(played().job, id=child, parent=Parent(JOB, "000001-000001", rehearsal=True))
    own = replace(attempt(1, 30, 31, 40), job=child, instance=InstanceId("i-own"), from_checkpoint="000001-000001")
    rehearsal = JobFacts(copy, [AttemptFacts(own)])
    facts = [played(), rehearsal]
    report = cost_report(lines_of(facts), facts, ALWAYS, by="owner")
    adds_up(report)
    assert next(a for a in report.uses if a.use is Use.REHEARSAL).seconds == 600
    assert [(g.group, g.machines) for g in report.groups] == [("ann", 4)]
    assert report.moves == 2, "those of the job alone"
    assert [m.job for m in report.attempts] == [JOB] * 4
    assert [m.ended.startswith("a rehearsal") for m in report.attempts] == [False, True, False, False]


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("user", {"ann"}),
        ("project", {"genome"}),
        ("tag:lab", {"a"}),
        ("tag:none", {"-"}),
        ("type", {"m6i.large", "m6i.xlarge"}),
        ("market", {"spot", "on-demand"}),
        ("month", {"2026-11"}),
    ],
)
def test_groups(by: str, groups: set[str]) -> None:
    report = cost_report(lines_of([played()]), [played()], ALWAYS, by=by)
    adds_up(report)
    assert {g.group for g in report.groups} == groups


def test_a_group_that_there_is_not() -> None:
    with pytest.raises(UsageError, match="expected user, owner"):
        cost_report([], [], ALWAYS, by="tag:")


def test_what_is_no_jobs_own_is_beside_machines() -> None:
    host = ChargeLine(ChargeKind.CONTROLLER, NOON, at(60), 3600.0, 17, 17)
    report = cost_report([*lines_of([played()]), host], [played()], ALWAYS, by="owner")
    adds_up(report)
    assert {s.cause: s.usd_micros for s in report.savings}[Saving.OTHERS] == -17
    assert {g.group: g.usd_micros for g in report.groups}["-"] == 17


def test_the_month_is_spent_so_far_and_the_rate_of_what_runs() -> None:
    now = datetime(2026, 11, 30, 12, tzinfo=UTC)
    runs = ChargeLine(ChargeKind.MACHINE, now - timedelta(hours=2), now, 7200.0, 60_000, 192_000)
    ended = ChargeLine(ChargeKind.MACHINE, now - timedelta(hours=1), now - timedelta(seconds=5), 3595.0, 1_000, 1_000)
    before = replace(ended, begins=now - timedelta(days=31), ends=now - timedelta(days=31))
    counted = ChargeLine(ChargeKind.REQUESTS, now - timedelta(hours=1), now, 10.0, 5, 5)
    found = forecast([runs, ended, before, counted], now)
    assert (found.month, found.spent_usd_micros, found.usd_micros_per_hour, found.hours_left) == ("2026-11", 61_005, 30_000, 12)
    assert found.usd_micros == 61_005 + 12 * 30_000


def test_idle_time_is_what_the_controller_suspended() -> None:
    def moment(minutes: float, kind: str, **data: str) -> Moment:
        return Moment(at(minutes), JOB, None, kind, "", dict(data))

    story = [
        moment(0, "wish", wish="hold", held_by="idle"),
        moment(1, "ended", state="held"),
        moment(31, "ended", state="active"),
        moment(40, "wish"),  # its user suspends it
        moment(41, "ended", state="held"),
        moment(99, "ended", state="active"),
        moment(100, "wish", wish="hold", held_by="idle"),
        moment(101, "ended", state="held"),
    ]
    assert idle_seconds(story, Period(None, None, at(111))) == 40 * 60
    assert idle_seconds(story, Period(None, NOON - timedelta(days=1), at(111))) == 0


@pytest.mark.parametrize("name", names())
def test_parts_add_up_in_each_bill_made_by_hand(name: str) -> None:
    told = load(name)
    lines = bill.lines(told.facts, told.rules, told.now)
    mine: dict[JobId, list[MachineFacts]] = {}
    for m in told.facts.machines:
        mine.setdefault(m.attempt.job, []).append(m)
    facts = [
        JobFacts(
            replace(
                played().job,
                id=job,
                parent=Parent(some[0].payer, "000001-000001", rehearsal=True) if some[0].payer != job else None,
            ),
            [AttemptFacts(m.attempt, "running", 7.0, 11.0, 13.0) for m in some],
        )
        for job, some in mine.items()
    ]
    report = cost_report(lines, facts, Period(None, None, told.now), by="kind", month=lines)
    adds_up(report)
    assert report.usd_micros == told.total


def test_parts_add_up_whatever_the_shares_are() -> None:
    chance = random.Random(7)
    for _ in range(200):
        uses = chance.sample(list(Use), chance.randint(1, len(Use)))
        shares = {use: Fraction(chance.randint(1, 10**9), chance.randint(1, 10**6)) for use in uses}
        amount = chance.randint(0, 10**6)
        parts = split(amount, shares)
        assert sum(parts.values()) == amount
        whole = sum(shares.values())
        assert all(abs(parts[use] - amount * shares[use] / whole) < 1 for use in uses)
