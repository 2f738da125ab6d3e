"""`report`: the bill, by machine or by group, for people, programs and spreadsheets; and beside the cloud's own bill."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotsurfer.cli.common import SESSION, examples, known_jobs, write
from spotsurfer.cli.printing import pairs, paragraph, put, put_json, table, tell
from spotsurfer.common.timeline_words import plainly
from spotsurfer.common.units import counted, duration, parse_seconds
from spotsurfer.model.errors import BillDiffers, UsageError
from spotsurfer.model.money import usd
from spotsurfer.ports.clock import SystemClock

if TYPE_CHECKING:
    from spotsurfer.ledger.reconcile import Reconciled
    from spotsurfer.model.charges import ChargeLine
    from spotsurfer.model.cost_report import CostReport, MachineCost
    from spotsurfer.web.client import Client, Json

Jobs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="JOB", help="Only these jobs, by id or name; none = all.", show_default=False, autocompletion=known_jobs
    ),
]
ON_BILL = (  # help of --reconcile
    "Compare with the cloud's bill: CUR 2.0 or FOCUS (CSV, Parquet), Google's detailed export (CSV, JSON lines). Repeat it"
    " for a bill of several files."
)


def add(app: typer.Typer) -> None:
    """Register the command of this file."""
    some = ("spotsurfer report", "spotsurfer report assembly-3f9a1c --json", "spotsurfer report --since 30d --by owner")
    more = (
        "spotsurfer report --since 2026-11-01 --until 2026-12-01 --by tag:lab",
        "spotsurfer report --csv bill.csv --html bill.html",
        "spotsurfer report --reconcile cur-2026-11.parquet",
    )
    app.command(epilog=examples(*some, *more))(report)


def report(  # noqa: PLR0913 - one parameter an option
    jobs: Jobs = None,
    *,
    since: Annotated[
        str | None,
        typer.Option("--since", help="From that day on (UTC): so long ago, like 30d, or a date.", show_default=False),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", help="Only days (UTC) before that: so long ago, or a date.", show_default=False),
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            "--by",
            metavar="WHAT",
            help="One line for each owner (or user), project, tag:NAME, month, day, type, market, name, job, run-as, provider,"
            " region or kind.",
            show_default=False,
        ),
    ] = "",
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write all lines, with columns of FOCUS.", show_default=False)
    ] = None,
    parquet_file: Annotated[
        Path | None, typer.Option("--parquet", metavar="FILE", help="The same as Parquet.", show_default=False)
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with plots.", show_default=False)
    ] = None,
    bills: Annotated[list[Path] | None, typer.Option("--reconcile", metavar="BILL", help=ON_BILL, show_default=False)] = None,
) -> None:
    """Say what was spent, what on-demand would have cost, what was repeated and how long jobs stood still.

    Days are those of UTC. Amounts are US dollars at the prices that the controller knows; --reconcile holds them against the
    cloud's own bill.
    """
    start, end = _moment("--since", since), _moment("--until", until)
    if start is not None and end is not None and end <= start:
        raise UsageError("--until is not later than --since: exchange them, or leave one out.")
    from spotsurfer.web.client import job_path

    client = SESSION.client()
    if bills:
        if jobs or since or until or by or csv_file or parquet_file or html_file:
            raise UsageError("--reconcile takes the days from the bill and compares everything: leave the others out.")
        _reconcile(client, bills)
        return
    for name in jobs or ():
        job_path(name)  # refuses what can't be a job's name before it is asked for
    asked = {"since": start.isoformat() if start else None, "until": end.isoformat() if end else None}
    answer = client.get("/v1/report", job=list(jobs or []), by=by or None, **asked)
    found = _report(answer)
    if csv_file or parquet_file or html_file:
        _write(_lines(client, jobs or [], asked), found, by, csv_file, parquet_file, html_file)
    put_json(answer)
    if not (csv_file or parquet_file or html_file):
        _show(found, by)


def _moment(option: str, text: str | None) -> datetime | None:
    """A time in UTC. Raises UsageError."""
    if text is None:
        return None
    try:
        if "-" in text:
            at = datetime.fromisoformat(text.strip())
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
        return SystemClock().now() - timedelta(seconds=parse_seconds(text))
    except (ValueError, OverflowError):
        expected = 'expected so long ago, like "30d", or a date like 2026-11-01'
        raise UsageError(f"{option} is {text!r}, {expected}.") from None


def _report(answer: Json) -> CostReport:
    from pydantic import TypeAdapter

    from spotsurfer.model.cost_report import CostReport

    return TypeAdapter(CostReport).validate_python(answer)


def _lines(client: Client, jobs: Sequence[str], asked: dict[str, str | None]) -> list[ChargeLine]:
    """The lines of these jobs, or all."""
    from pydantic import TypeAdapter

    from spotsurfer.model.charges import ChargeLine

    wanted: Sequence[str | None] = jobs or [None]
    told = [x for job in wanted for x in client.get("/v1/charges", job=job, **asked)["charges"]]
    return TypeAdapter(list[ChargeLine]).validate_python(told)


def _write(
    lines: Sequence[ChargeLine], found: CostReport, by: str, csv_file: Path | None, parquet: Path | None, page: Path | None
) -> None:
    from spotsurfer.cli import report_files

    if csv_file is not None:
        write(csv_file, report_files.as_csv(lines, found))
    if parquet is not None:
        report_files.write_parquet(parquet, lines, found)
    if page is not None:
        write(page, report_files.as_page(lines, found, by))
    written = ", ".join(str(path) for path in (csv_file, parquet, page) if path is not None)
    tell(f"{written}: {counted(len(lines), 'line')} of {counted(len(found.attempts), 'machine')}.")


def _show(found: CostReport, by: str) -> None:
    from spotsurfer.cli.report_files import group_row, summary

    if not found.attempts and not found.usd_micros:
        put("Nothing was spent.")
        return
    spent, listed = found.usd_micros, found.usd_micros_on_demand
    time = duration(sum(m.seconds for m in found.attempts))
    if by:
        total = ["total", str(len(found.attempts)), time, *_amounts(spent, listed)]
        table([by.removeprefix("tag:"), "machines", "time", "usd", "list", "saved"], [*map(group_row, found.groups), total])
    else:
        rows = [_machine(m) for m in found.attempts]
        if rest := spent - sum(m.usd_micros for m in found.attempts):
            rows.append(["no machine's", *[""] * 5, usd(rest), usd(rest), usd(0), ""])
            listed = rest + sum(m.usd_micros_on_demand for m in found.attempts)
        total = ["total", "", "", "", "", time, *_amounts(spent, listed), ""]
        table(["job", "#", "began", "machine", "market", "time", "usd", "list", "saved", "ended"], [*rows, total])
    put()
    pairs(summary(found))


def _amounts(spent: int, listed: int) -> list[str]:
    return [usd(spent), usd(listed), usd(listed - spent)]


def _machine(m: MachineCost) -> list[str]:
    began = f"{m.began_at.astimezone(UTC):%Y-%m-%d}"
    return [
        *(m.job, str(m.attempt), began, m.pool.rsplit("/", 1)[-1], str(m.market), duration(m.seconds)),
        *(*_amounts(m.usd_micros, m.usd_micros_on_demand), plainly(m.ended)),
    ]


# ---- Beside the cloud's bill


def _reconcile(client: Client, bills: Sequence[Path]) -> None:
    """Compare with the cloud's bill. Raises BillDiffers if a difference is more than taxes, credits and days not billed yet."""
    from pydantic import TypeAdapter

    from spotsurfer.ledger.bill_files import read
    from spotsurfer.ledger.reconcile import Reconciled, months, reconcile

    bill = [line for path in bills for line in read(path)]
    tell(f"{', '.join(map(str, bills))}: {counted(len(bill), 'line')}.")
    since, until = months(bill)
    lines = _lines(client, [], {"since": since.isoformat(), "until": until.isoformat()})
    found = reconcile(bill, lines, client.get("/v1/info")["family"])
    put_json(TypeAdapter(Reconciled).dump_python(found, mode="json"))
    _show_differences(found)
    if wrong := [d for d in found.differences if not d.expected]:
        raise BillDiffers(f"The bill and the ledger differ in {counted(len(wrong), 'thing')}; the list says in which.")


def _show_differences(found: Reconciled) -> None:
    for difference in found.differences:
        paragraph(f"{usd(difference.usd_micros):>10} USD  {difference.text}")
    if found.differences:
        put()
    days = f"{found.since:%Y-%m-%d} to {found.until:%Y-%m-%d} (UTC)"
    explained = usd(sum(d.usd_micros for d in found.differences))
    pairs(
        [
            ("days", f"{days}, billed until {found.billed_until:%Y-%m-%d %H:%M}"),
            ("machines compared", str(found.machines)),
            ("on the bill", f"{usd(found.bill_usd_micros)} USD"),
            ("in the ledger", f"{usd(found.ledger_usd_micros)} USD"),
            ("explained", f"{explained} USD in {counted(len(found.differences), 'difference')}"),
            ("rounding", f"{usd(found.rounding_usd_micros)} USD"),
            ("not compared", found.left_out),
        ]
    )
