"""The cloud's bill beside the ledger: planted differences are found and explained, and nothing else is told."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from support.cloud_bills import CUR_COLUMNS, MONTH, cur, cur_row, google, write_cur, write_cur_parquet
from support.played_bill import JOB, NOON, NOW, at, lines_of, played

from spotsurfer.cli.report_files import as_csv, write_parquet
from spotsurfer.ledger.bill_files import read
from spotsurfer.ledger.cost_report import Period, cost_report
from spotsurfer.ledger.reconcile import Cause, Reconciled, reconcile
from spotsurfer.model.charges import ChargeKind, ChargeLine
from spotsurfer.model.errors import InputMissing, SpotsurferError

LINES = lines_of([played()])
FIRST, SECOND, THIRD = (f"i-0000000000000000{n}" for n in (1, 2, 3))
EXPORTS = Path(__file__).parent / "exports"
HOUR = timedelta(hours=1)


def compared(path: Path, lines: list[ChargeLine] = LINES) -> Reconciled:
    found = reconcile(read(path), lines, "family")
    explained = sum(d.usd_micros for d in found.differences)
    assert found.bill_usd_micros - found.ledger_usd_micros == explained + found.rounding_usd_micros
    assert abs(found.rounding_usd_micros) < 20
    return found


def others() -> list[dict[str, object]]:
    """Lines of the account that are not of our machines."""
    ours = {"line_item_usage_type": "USE2-BoxUsage:m6i.large", "line_item_usage_amount": "1", "pricing_unit": "Hrs"}
    family = {**ours, "resource_tags": json.dumps({"user_spotsurfer_job": "x-1", "user_spotsurfer_family": "another"})}
    return [
        cur_row("Usage", NOON, NOON + HOUR, 4.2, line_item_resource_id="i-others", **ours),
        cur_row("Usage", NOON, NOON + HOUR, 4.3, line_item_resource_id="i-other-family", **family),
        cur_row(
            "Usage", NOON, NOON + HOUR, 0.5, line_item_resource_id="bucket", line_item_usage_type="USE2-TimedStorage-ByteHrs"
        ),
    ]


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
def test_a_bill_of_what_was_used_has_no_differences(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"cur.{kind}"
    rows = [*cur(LINES), *others()]
    if kind == "parquet":
        write_cur_parquet(path, rows)
    else:
        write_cur(path, rows)
        if kind == "csv.gz":
            path.write_bytes(gzip.compress(path.read_bytes()))
    found = compared(path)
    assert (found.differences, found.machines) == ([], 3)


def test_two_planted_differences_are_found_and_nothing_else(tmp_path: Path) -> None:
    """A machine that nobody knows ran for three hours; the second one was given back two hours later than the ledger says."""
    rows = [*cur(LINES), *others()]
    usage = {"line_item_usage_type": "USE2-SpotUsage:m6i.large", "line_item_usage_amount": "1", "pricing_unit": "Hrs"}
    tags = {"resource_tags": json.dumps({"user_spotsurfer_job": "asm-9", "user_spotsurfer_attempt": "4"})}
    rows += [
        cur_row("Usage", at(60 * h), at(60 * h + 60), 0.03, line_item_resource_id="i-forgotten", **usage, **tags)
        for h in range(3)
    ]
    more = {**usage, "line_item_usage_type": "USE2-BoxUsage:m6i.large"}
    rows += [cur_row("Usage", at(60 * h), at(60 * h + 60), 0.096, line_item_resource_id=SECOND, **more) for h in (3, 4)]
    path = tmp_path / "cur.csv"
    write_cur(path, rows)
    hours, unknown = sorted(compared(path).differences, key=lambda d: d.cause)
    assert (hours.cause, hours.resource, hours.job, hours.attempt, hours.usd_micros) == (Cause.HOURS, SECOND, JOB, 2, 192_000)
    assert hours.text == (
        f"{SECOND} (asm-1, machine 2) ran 3h04m by the bill and 1h04m by the ledger: 0.1920 USD at the ledger's price."
    )
    assert (unknown.cause, unknown.resource, unknown.usd_micros) == (Cause.UNKNOWN, "i-forgotten", 90_000)
    assert "3h00m, and the ledger knows no such machine" in unknown.text
    assert not hours.expected and not unknown.expected


def test_another_price_and_a_machine_that_the_bill_lacks(tmp_path: Path) -> None:
    rows = [r for r in cur(LINES) if r["line_item_resource_id"] != FIRST]
    for row in rows:
        if row["line_item_resource_id"] == THIRD:
            row["line_item_unblended_cost"] = str(float(row["line_item_unblended_cost"]) * 1.5)
    path = tmp_path / "cur.csv"
    write_cur(path, rows)
    lacks, price = compared(path).differences
    assert (lacks.cause, lacks.resource) == (Cause.MISSING, FIRST)
    assert (price.cause, price.resource) == (Cause.PRICE, THIRD)
    assert "0.0915 USD an hour on the bill and 0.0610 USD in the ledger" in price.text


def test_taxes_credits_and_what_is_not_billed_yet_are_expected(tmp_path: Path) -> None:
    rows = [r for r in cur(LINES) if r["line_item_usage_start_date"] < "2026-11-10T14"]
    rows.append(cur_row("Tax", *MONTH, 0.5))
    rows.append(cur_row("Credit", NOON, at(60), -0.01, line_item_resource_id=FIRST, line_item_line_item_description="a gift"))
    rows.append(cur_row("Credit", NOON, at(60), -9.0, line_item_resource_id="i-others"))
    path = tmp_path / "cur.csv"
    write_cur(path, rows)
    found = {d.cause: d for d in compared(path).differences}
    assert set(found) == {Cause.TAX, Cause.CREDIT, Cause.NOT_YET}
    assert all(d.expected for d in found.values())
    assert (found[Cause.TAX].usd_micros, found[Cause.CREDIT].usd_micros) == (500_000, -10_000)
    late = sum(x.usd_micros * max(0, (x.ends - max(x.begins, at(120))) / (x.ends - x.begins)) for x in LINES)
    assert found[Cause.NOT_YET].usd_micros == pytest.approx(-late, abs=3)


def test_in_a_closed_month_nothing_is_still_to_come(tmp_path: Path) -> None:
    rows = [{**r, "bill_invoice_id": "1"} for r in cur(LINES) if r["line_item_resource_id"] != THIRD]
    path = tmp_path / "cur.csv"
    write_cur(path, rows)
    assert [(d.cause, d.resource) for d in compared(path).differences] == [(Cause.MISSING, THIRD)]


def test_a_disk_is_known_by_our_tags(tmp_path: Path) -> None:
    disk = replace(LINES[0], kind=ChargeKind.DISK, usd_micros=5_000)
    tags = json.dumps({"user_spotsurfer_job": JOB, "user_spotsurfer_attempt": "1"})
    usage = {"line_item_usage_type": "USE2-EBS:VolumeUsage.gp3", "resource_tags": tags, "line_item_resource_id": "vol-1"}
    path = tmp_path / "cur.csv"
    write_cur(path, [*cur(LINES), cur_row("Usage", NOON, at(60), 0.005, **usage)])
    assert compared(path, [*LINES, disk]).differences == []
    (found,) = compared(path).differences
    assert (found.cause, found.usd_micros) == (Cause.AMOUNT, 5_000)
    assert found.text.startswith(f"The disk of {FIRST} (asm-1, machine 1) costs 0.0050 USD on the bill and 0.0000 USD")


def test_our_own_files_of_focus_are_read_back(tmp_path: Path) -> None:
    report = cost_report(LINES, [played()], Period(None, None, NOW))
    (tmp_path / "bill.csv").write_text(as_csv(LINES, report))
    write_parquet(tmp_path / "bill.parquet", LINES, report)
    for name in ("bill.csv", "bill.parquet"):
        found = compared(tmp_path / name)
        assert (found.differences, found.machines) == ([], 3)
        assert found.bill_usd_micros == found.ledger_usd_micros


def test_googles_bill_tells_no_hours(tmp_path: Path) -> None:
    rows = google(LINES)
    path = tmp_path / "google.json"
    path.write_text("\n".join(json.dumps(r) for r in rows))
    assert compared(path).differences == []
    rows[0]["cost"] += 0.02
    rows[0]["credits"] = [{"name": "Committed use", "amount": -0.001}]
    path.write_text("\n".join(json.dumps(r) for r in rows))
    amount, credit = compared(path).differences
    assert (amount.cause, amount.resource, amount.usd_micros) == (Cause.AMOUNT, FIRST, 20_000)
    assert (credit.cause, credit.usd_micros, credit.expected) == (Cause.CREDIT, -1_000, True)


@pytest.mark.parametrize(
    ("name", "causes"),
    [
        ("cur2.csv", [Cause.HOURS, Cause.UNKNOWN, Cause.TAX]),
        ("focus.csv", [Cause.PRICE]),
        ("google.csv", []),
        ("google.jsonl", [Cause.MISSING]),
    ],
)
def test_the_examples(name: str, causes: list[Cause]) -> None:
    assert [d.cause for d in compared(EXPORTS / name).differences] == causes


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "has no lines"),
        (b"a,b\n1,2\n", "columns like a, b: expected those of AWS's CUR 2.0"),
        (b"PAR1 and no more", "is no CSV, Parquet or JSON lines"),
        (b"\x1f\x8bbroken", "can't be read|is no CSV"),
        (b"\xff\xfe\x00", "is no CSV"),
        (b'{"cost": 1', "is no CSV"),
        (b"cost,usage_start_time,usage_end_time\n1,2026-11-01,2026-11-02\n1,2\n", "more or fewer cells"),
        (b"cost,usage_start_time,usage_end_time\nx,2026-11-01,2026-11-02\n", "line 2: 'x' is no number"),
        (b"cost,usage_start_time,usage_end_time\nNaN,2026-11-01,2026-11-02\n", "line 2: 'NaN' is no number"),
        (b"cost,usage_start_time,usage_end_time\n1,yesterday,2026-11-02\n", "'yesterday' is no time"),
        (b"cost,usage_start_time,usage_end_time,currency\n1,2026-11-01,2026-11-02,EUR\n", "in EUR, and the ledger in USD"),
        (b"cost,usage_start_time,usage_end_time,labels\n1,2026-11-01,2026-11-02,[1\n", "line 2"),
        (b"cost,usage_start_time,usage_end_time,cost_type\n1,2026-11-01,2026-11-02,tax\n", "no lines of use"),
    ],
)
def test_a_file_that_is_no_bill(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "bill"
    path.write_bytes(content)
    with pytest.raises(InputMissing, match=said):
        reconcile(read(path), LINES)


def test_no_garbage_is_a_crash(tmp_path: Path) -> None:
    """Every cell of a good bill is broken once, in several ways."""
    rows = cur(LINES)[:1]
    path = tmp_path / "cur.csv"
    for column in CUR_COLUMNS:
        for bad in (
            "",
            "x",
            "[[]]",
            '{"a"',
            "1e999999",
            "9999-99-99",
            "\x00",
            "=1+1",
            "null",
            "[1]",
            "0001-01-01T00:00:00+14:00",
        ):
            write_cur(path, [{**rows[0], column: bad}, rows[0]])
            try:
                reconcile(read(path), LINES)
            except SpotsurferError as e:
                assert str(e)
