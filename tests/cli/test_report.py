"""`report`: the bill by machine and by group, for people, programs and spreadsheets, and beside the cloud's bill."""

from __future__ import annotations

import csv
import json
import re
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cli.conftest import Call
from support.fake_service import POOL, START, FakeService, an_attempt

from spotsurfer.model.charges import ChargeKind, ChargeLine
from spotsurfer.model.job import JobId
from spotsurfer.model.market import Market

HOUR = timedelta(hours=1)


def machine_line(job: str, days: int = 0) -> ChargeLine:
    begins = START + timedelta(days=days)
    where = {"provider": POOL.provider, "zone": POOL.zone, "instance_type": POOL.instance_type, "market": Market.SPOT}
    whose = {"job": JobId(job), "payer": JobId(job), "attempt": 1, "resource": "i-2" if days else "i-1"}
    return ChargeLine(ChargeKind.MACHINE, begins, begins + HOUR, 3600.0, 30_000, 96_000, **whose, **where)  # type: ignore[arg-type]


@pytest.fixture
def three(controller: FakeService, call: Call) -> list[str]:
    """Of ann, of bob, of nobody; the last one had its machine ten days later. Each for an hour."""
    made = [
        call("submit", "-q", "--name", name, *more, "--", "prog").out.strip()
        for name, more in (("asm", ["--tag", "lab=a;b"]), ("asm", ["--tag", "lab=c"]), ("x", []))
    ]
    for number, (job, owner) in enumerate(zip(made, ("ann", "bob", ""), strict=True)):
        days = 10 if number == 2 else 0
        controller.change(job, owner=owner)
        ended = replace(
            an_attempt(JobId(job)), launched_at=START + timedelta(days=days), granted_at=START + timedelta(days=days)
        )
        controller.statuses[job] = replace(controller.statuses[job], attempts=[controller.status(ended)])
        controller.charged.append(machine_line(job, days))
    return made


def test_the_bill_by_machine_and_what_it_says(three: list[str], call: Call) -> None:
    text = call("report", three[0]).out
    for part in ("0.0300", "0.0960", "0.0660", "2026-03-01", "m6i.large", "work repeated", "time frozen", "not counted"):
        assert part in text
    bill = json.loads(call("report", three[0], "--json").out)
    assert (bill["usd_micros"], bill["usd_micros_on_demand"], bill["moves"]) == (30_000, 96_000, 0)
    assert [a["attempt"] for a in bill["attempts"]] == [1]
    both = json.loads(call("report", *three[:2], "--json").out)
    assert (both["usd_micros"], both["forecast"]) == (60_000, None)
    assert "month 2026-03" in call("report").out


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("user", {"ann": 1, "bob": 1, "-": 1}),
        ("name", {"asm": 1, "x": 1}),  # two jobs on one machine
        ("tag:lab", {"a;b": 1, "c": 1, "-": 1}),
        ("market", {"spot": 2}),
    ],
)
def test_groups(three: list[str], call: Call, by: str, groups: dict[str, int]) -> None:
    told = json.loads(call("report", "--by", by, "--json").out)["groups"]
    assert {g["group"]: g["machines"] for g in told} == groups
    assert sum(g["usd_micros"] for g in told) == 90_000
    rows = [line.split()[:2] for line in call("report", "--by", by).out.splitlines()]
    assert all([name, str(count)] in rows for name, count in groups.items())


@pytest.mark.parametrize("by", ["tag:", "tags", "tag"])
def test_a_group_that_there_is_not(three: list[str], call: Call, by: str) -> None:
    wrong = call("report", "--by", by)
    assert (wrong.code, "user, owner" in wrong.err, "tag:NAME" in wrong.err) == (2, True, True)


def test_days_are_those_of_utc_and_the_last_one_is_not_in(
    three: list[str], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    for since, until, jobs in (
        ("2026-03-02", None, three[2:]),
        ("2026-03-01", "2026-03-02", three[:2]),
        (None, "2026-03-01", []),
    ):
        words = [x for option, value in (("--since", since), ("--until", until)) if value for x in (option, value)]
        bill = json.loads(call("report", *words, "--json").out)
        assert sorted(a["job"] for a in bill["attempts"]) == sorted(jobs)
        assert bill["usd_micros"] == 30_000 * len(jobs)
    assert call("report", "--since", "1s").out == "Nothing was spent.\n"


def test_a_period_that_ends_before_it_begins(three: list[str], call: Call) -> None:
    wrong = call("report", "--since", "2026-12-01", "--until", "2026-11-01")
    assert (wrong.code, "exchange them" in wrong.err) == (2, True)
    assert call("report", "--until", "soon").code == 2


def test_a_file_for_spreadsheets(three: list[str], call: Call, folder: Path, controller: FakeService) -> None:
    controller.change(three[1], owner="=HYPERLINK(1)")
    assert call("report", "--csv", "bill.csv").code == 0
    with (folder / "bill.csv").open(newline="") as opened:
        rows = {r["x_Job"]: r for r in csv.DictReader(opened)}
    one = rows[three[0]]
    assert (one["BilledCost"], one["ListCost"], one["BillingCurrency"]) == ("0.030000", "0.096000", "USD")
    assert (one["ChargePeriodStart"], one["ChargePeriodEnd"]) == ("2026-03-01T12:00:00Z", "2026-03-01T13:00:00Z")
    assert (one["PricingQuantity"], one["PricingUnit"], one["PricingCategory"]) == ("1.0", "Hours", "Dynamic")
    assert json.loads(one["Tags"])["lab"] == "a;b"
    assert rows[three[1]]["x_Owner"] == "'=HYPERLINK(1)"
    assert call("report", "--csv", "no/such/folder.csv").code == 2


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@sum", "\t=1", "\r=1"])
def test_no_cell_is_a_formula(text: str) -> None:
    from spotsurfer.cli.report_files import harmless

    assert harmless(text) == "'" + text
    assert harmless("a" + text) == "a" + text


def test_parquet_is_typed_and_says_the_same(three: list[str], call: Call, folder: Path) -> None:
    from pyarrow import parquet

    assert call("report", "--parquet", "bill.parquet").code == 0
    found = parquet.read_table(folder / "bill.parquet")
    assert str(found.schema.field("BilledCost").type) == "decimal128(18, 6)"
    assert sum(found["BilledCost"].to_pylist()) * 1_000_000 == 90_000
    assert dict(found["Tags"].to_pylist()[0])["lab"] == "a;b"


def test_without_pyarrow_the_remedy_is_told(three: list[str], call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    wrong = call("report", "--parquet", "bill.parquet")
    assert (wrong.code, "pip install 'spotsurfer[parquet]'" in wrong.err) == (2, True)


def test_a_page_loads_nothing_and_names_stay_text(three: list[str], call: Call, folder: Path, controller: FakeService) -> None:
    controller.change(three[0], owner="<script>alert(1)</script>")
    assert call("report", "--html", "bill.html", "--by", "owner").code == 0
    page = (folder / "bill.html").read_text()
    assert page.count("<svg") == 3
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "prefers-color-scheme:dark" in page
    assert not re.search(r"(?:src|href)=|@import|url\(", page)


CUR = (
    "line_item_line_item_type,line_item_usage_start_date,line_item_usage_end_date,line_item_usage_type,line_item_usage_amount,"
    "line_item_unblended_cost,line_item_resource_id,line_item_currency_code\n"
)


def test_the_clouds_bill_beside_it(three: list[str], call: Call, folder: Path, controller: FakeService) -> None:
    controller.charged = controller.charged[:1]
    row = "Usage,2026-03-01T12:00:00Z,2026-03-01T13:00:00Z,SpotUsage:m6i.large,1.0,{},i-1,USD\n"
    (folder / "same.csv").write_text(CUR + row.format("0.03"))
    same = call("report", "--reconcile", "same.csv")
    assert (same.code, "in 0 differences" in same.out) == (0, True)
    (folder / "more.csv").write_text(CUR + row.format("0.05"))
    more = call("report", "--reconcile", "more.csv")
    assert (more.code, "0.0500 USD an hour on the bill and 0.0300 USD in the ledger" in more.out) == (43, True)
    told = json.loads(call("report", "--reconcile", "more.csv", "--json").out)
    assert [(d["cause"], d["usd_micros"]) for d in told["differences"]] == [("other price", 20_000)]
    assert call("report", "--reconcile", "more.csv", "--since", "1d").code == 2
    assert call("report", "--reconcile", "none.csv").code == 4
