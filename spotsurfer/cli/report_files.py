"""The cost report as files: CSV and Parquet with the columns of FOCUS, and a page."""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spotsurfer.common.timeline_words import plainly
from spotsurfer.common.units import duration
from spotsurfer.ledger import focus_rows
from spotsurfer.model.charges import ChargeLine
from spotsurfer.model.cost_report import CostReport
from spotsurfer.model.errors import DISK_FULL, UsageError
from spotsurfer.model.money import usd

if TYPE_CHECKING:
    from spotsurfer.common.charts import Plot

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet may run a cell that begins so


def as_csv(lines: Sequence[ChargeLine], report: CostReport) -> str:
    """One row a line. Tags are a JSON object, amounts have six decimals, and a text that begins like a formula a ' in front."""
    text = io.StringIO()
    rows = csv.DictWriter(text, focus_rows.COLUMNS, lineterminator="\n")
    rows.writeheader()
    for row in focus_rows.rows(lines, report.labels):
        rows.writerow({name: _cell(name, value) for name, value in row.items()})
    return text.getvalue()


def _cell(name: str, value: object) -> object:
    if name in focus_rows.MONEY:
        return f"{value:.6f}"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True, ensure_ascii=False)
    return harmless(value) if isinstance(value, str) else value


def harmless(text: str) -> str:
    """A text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(FORMULA) else text


def write_parquet(path: Path, lines: Sequence[ChargeLine], report: CostReport) -> None:
    """The same rows, typed: amounts are decimals, tags a map. Raises UsageError without pyarrow, or if it can't be written."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise UsageError("Parquet needs pyarrow: pip install 'spotsurfer[parquet]', or take --csv.") from None
    types = {
        **dict.fromkeys(focus_rows.MONEY, pa.decimal128(18, 6)),
        **dict.fromkeys(focus_rows.TIMES, pa.timestamp("us", tz="UTC")),
        **dict.fromkeys(focus_rows.QUANTITIES, pa.float64()),
        **{"Tags": pa.map_(pa.string(), pa.string()), "x_Attempt": pa.int64()},
    }
    schema = pa.schema([(name, types.get(name, pa.string())) for name in focus_rows.COLUMNS])
    rows = [{**row, "Tags": sorted(row["Tags"].items())} for row in focus_rows.rows(lines, report.labels)]
    try:
        parquet.write_table(pa.Table.from_pylist(rows, schema), path)
    except OSError as e:
        if e.errno in DISK_FULL:
            raise
        raise UsageError(f"{path} can't be written: {e.strerror or e}. Name another file.") from e


# ---- The page


def as_page(lines: Sequence[ChargeLine], report: CostReport, by: str) -> str:
    """One HTML file that loads nothing."""
    from spotsurfer.common.charts import Bars, Sheet, sheets

    period = f"{_day(report.since) or 'the beginning'} to {_day(report.until) or 'now'} (UTC)"
    figures = [[name, value] for name, value in summary(report)]
    groups = Sheet(f"By {by}", ("group", "machines", "time", "USD", "list", "saved"), [group_row(g) for g in report.groups])
    tables = [
        Sheet("Summary", ("", ""), figures),
        *([groups] if by else []),
        Sheet("Otherwise", ("what", "USD", "how"), [[a.name, _usd(a.usd_micros), a.how] for a in report.alternatives]),
        Sheet(
            "Machines",
            ("job", "#", "began", "machine", "market", "time", "USD", "list", "ended"),
            [
                [
                    *(m.job, str(m.attempt), _day(m.began_at), m.pool, str(m.market), duration(m.seconds)),
                    *(usd(m.usd_micros), usd(m.usd_micros_on_demand), plainly(m.ended)),
                ]
                for m in report.attempts
            ],
        ),
    ]
    plots: list[Plot] = [
        Bars("Spent by day", "USD", _by_day(lines)),
        Bars("Paid time by use", "USD", [(str(a.use), [("spent", a.usd_micros / 1e6)]) for a in report.uses]),
        Bars("Saved by cause", "USD", [(str(s.cause), [("saved", s.usd_micros / 1e6)]) for s in report.savings]),
    ]
    return sheets("Cost report", f"{period}, as of {report.at.astimezone(UTC):%Y-%m-%d %H:%M} UTC", tables, plots)


def _by_day(lines: Sequence[ChargeLine]) -> list[tuple[str, list[tuple[str, float]]]]:
    days: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for line in lines:
        what = f"{line.market} machines" if line.market and line.kind in ("machine", "minimum", "gpu") else str(line.kind)
        days[_day(line.begins)][what] += line.usd_micros
    return [(day, [(what, micros / 1e6) for what, micros in sorted(some.items())]) for day, some in sorted(days.items())]


def _day(at: datetime | None) -> str:
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%d}"


def _usd(micros: int | None) -> str:
    return "-" if micros is None else usd(micros)


# ---- What the terminal and the page both show


def group_row(group: Any) -> list[str]:
    """Cells of a group."""
    spent, listed = group.usd_micros, group.usd_micros_on_demand
    return [group.group, str(group.machines), duration(group.seconds), usd(spent), usd(listed), usd(listed - spent)]


def summary(report: CostReport) -> list[tuple[str, str]]:
    """Names and figures below the bill; empty ones are left out."""
    demand = next((a.usd_micros for a in report.alternatives if a.name == "on demand"), None)
    kinds = {str(kind): micros for kind, micros in report.kinds.items() if micros}
    waste = [a for a in report.uses if a.use != "work"]
    rows = [
        ("spent", f"{usd(report.usd_micros)} USD"),
        *((f"  {kind}", f"{usd(micros)} USD") for kind, micros in kinds.items() if len(kinds) > 1),
        ("list price", f"{usd(report.usd_micros_on_demand)} USD for the same machine-hours on demand"),
    ]
    if demand is not None:
        saved = demand - report.usd_micros
        rows += [
            ("on demand", f"{usd(demand)} USD, if each job had had one machine, the one asked for"),
            ("saved", f"{usd(saved)} USD of that ({100 * saved / demand if demand else 0.0:.0f} %)"),
            *((f"  {s.cause}", f"{usd(s.usd_micros)} USD") for s in report.savings if s.usd_micros),
        ]
    rows += [(a.name, f"{usd(a.usd_micros)} USD") for a in report.alternatives[1:] if a.usd_micros is not None]
    rows += [
        ("work", ", ".join(f"{usd(a.usd_micros)} USD, {duration(a.seconds)}" for a in report.uses if a.use == "work")),
        ("waste", f"{usd(sum(a.usd_micros for a in waste))} USD" if waste else ""),
        *((f"  {a.use}", f"{usd(a.usd_micros)} USD, {duration(a.seconds)}") for a in waste),
        ("work repeated", duration(report.repeated_seconds)),
        ("work kept", duration(report.kept_seconds) + " that a restart from zero would have repeated"),
        ("time frozen", duration(report.frozen_seconds)),
        ("moves", str(report.moves)),
        ("stopped by moves", duration(report.pause_seconds)),
    ]
    if (f := report.forecast) is not None:
        sum_of = f"{usd(f.spent_usd_micros)} spent + {usd(f.usd_micros_per_hour)} an hour * {f.hours_left:.1f} h left"
        rows.append((f"month {f.month}", f"{usd(f.usd_micros)} USD = {sum_of}, if nothing starts or ends"))
    rows.append(("not counted", "traffic to anything but the store: see the cloud's own bill"))
    return [(name, value) for name, value in rows if value]
