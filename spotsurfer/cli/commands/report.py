"""`report`: the bill, by machine or by group, for people, programs and spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer

from spotsurfer.cli.commands.show import OptionalJob
from spotsurfer.cli.common import SESSION, examples, moment_of, write
from spotsurfer.cli.printing import money, pairs, put, put_json, table, tell, when
from spotsurfer.common.units import counted, duration, size
from spotsurfer.model.errors import UsageError
from spotsurfer.web.client import Json, job_path

ALL_SAVED = ("keeping", "drained", "finished")  # last report of an agent if nothing is lost with its machine
SUMMED = (
    *("seconds", "usd_micros", "usd_micros_on_demand", "transfer_bytes", "transfer_usd_micros"),
    *("frozen_seconds", "cpu_seconds"),
)
BY = ("user", "name", "tag:NAME")
COLUMNS = (
    *("began_at", "ended_at", "job", "name", "user", "tags", "attempt", "pool", "market", "seconds", "usd", "usd_on_demand"),
    *("usd_saved", "transfer_bytes", "usd_transfer", "cpu_seconds", "frozen_seconds", "ended"),
)
NOT_COUNTED = ["storage", "requests", "other traffic"]  # costs that a cloud bills and we do not know
NOBODY = "-"  # a job without that tag, or without a user of its own


def add(app: typer.Typer) -> None:
    """Register the command of this file."""
    some = ("spotsurfer report", "spotsurfer report assembly-3f9a1c --json", "spotsurfer report --since 30d --by user")
    more = ("spotsurfer report --since 2026-11-01 --by tag:project", "spotsurfer report --csv bill.csv")
    app.command(epilog=examples(*some, *more))(report)


def report(
    job: OptionalJob = None,
    *,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only machines ordered since then: so long ago, like 30d, or a date.", show_default=False),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            "--by", metavar="WHAT", help="One line for each name, tag:NAME, or user, who jobs run as.", show_default=False
        ),
    ] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Write a line a machine there.", show_default=False)
    ] = None,
) -> None:
    """Say what was spent, what on-demand would have cost, what was repeated and how long jobs stood still.

    Transfer between machines and a store in another region or cloud is counted, at list prices. Storage, requests to it and
    other traffic are not: the cloud's own bill has them.
    """
    if by is not None and by not in ("user", "name") and not (by.startswith("tag:") and len(by) > len("tag:")):
        raise UsageError(f"--by is {by!r}, expected {', '.join(BY[:-1])} or {BY[-1]}.")
    client, start = SESSION.client(), moment_of(since).isoformat() if since is not None else None
    jobs = [client.get(job_path(job))] if job is not None else client.get("/v1/jobs")["jobs"]
    lines = client.get("/v1/costs", job=job, since=start)["costs"]
    summary = summarize(lines, _billed(jobs, lines) if since is not None else jobs)
    groups = grouped(lines, by) if by is not None else []
    if csv_file is not None:
        write(csv_file, as_csv(lines))
        tell(f"{csv_file}: {counted(len(lines), 'machine')}.")
    put_json({"attempts": lines, **summary, **({"groups": groups} if by is not None else {})})
    if csv_file is None:
        _show(lines, groups, by, summary)


def _show(lines: list[Json], groups: list[Json], by: str | None, summary: Json) -> None:
    if not lines:
        put("Nothing was spent.")
        return
    if by is not None:
        rows = [[g["group"], str(g["machines"]), *_amounts(g)] for g in groups]
        total = ["total", str(len(lines)), *_amounts(_sum(lines))]
        table([by.removeprefix("tag:"), "machines", "time", "usd", "list", "saved"], [*rows, total])
    else:
        rows = [_cost(line) for line in lines]
        total = ["total", "", "", "", "", *_amounts(_sum(lines)), ""]
        table(["job", "#", "began", "machine", "market", "time", "usd", "list", "saved", "ended"], [*rows, total])
    put()
    pairs(
        [
            ("spent", f"{money(summary['usd_micros'])} USD"),
            ("of that transfer", _transfer(summary)),
            ("list price", f"{money(summary['usd_micros_on_demand'])} USD for the same machine-hours on demand"),
            ("saved", f"{money(summary['usd_micros_saved'])} USD ({summary['saved_percent']:.0f} %)"),
            ("work repeated", duration(summary["repeated_seconds"])),
            ("time frozen", duration(summary["frozen_seconds"])),
            ("moves", summary["moves"]),
            ("stopped by moves", duration(summary["pause_seconds"])),
            ("not counted", f"{', '.join(summary['not_counted'])}: see the cloud's own bill"),
        ]
    )


def _transfer(summary: Json) -> str | None:
    if not summary["transfer_bytes"]:
        return None
    return f"{money(summary['transfer_usd_micros'])} USD for {size(summary['transfer_bytes'])} to and from the store"


def _billed(jobs: list[Json], lines: list[Json]) -> list[Json]:
    """The jobs, each with only the machines that the lines cover."""
    known = {(line["job"], line["attempt"]) for line in lines}
    found = [{**job, "attempts": [a for a in job["attempts"] if (job["id"], a["number"]) in known]} for job in jobs]
    return [{**job, "moves": sum(1 for a in job["attempts"] if a["granted_at"] and a["from_checkpoint"])} for job in found]


def summarize(lines: list[Json], jobs: list[Json]) -> Json:
    """The totals below the bill."""
    total = _sum(lines)
    spent, listed = total["usd_micros"], total["usd_micros_on_demand"]
    return {
        "usd_micros": spent,
        "usd_micros_on_demand": listed,
        "usd_micros_saved": listed - spent,
        "transfer_bytes": total["transfer_bytes"],
        "transfer_usd_micros": total["transfer_usd_micros"],
        "saved_percent": 100 * (listed - spent) / listed if listed else 0.0,
        "repeated_seconds": sum(repeated_seconds(job) for job in jobs),
        "frozen_seconds": total["frozen_seconds"],
        "moves": sum(job["moves"] for job in jobs),
        "pause_seconds": sum(a["pause_seconds"] or 0.0 for job in jobs for a in job["attempts"]),
        "not_counted": NOT_COUNTED,
    }


def grouped(lines: Sequence[Json], by: str) -> list[Json]:
    """The bill by "user", "name" or "tag:NAME", the most expensive group first."""
    groups: dict[str, list[Json]] = {}
    for line in lines:
        groups.setdefault(_group_of(line, by), []).append(line)
    found = [{"group": name, "machines": len(some), **_sum(some)} for name, some in groups.items()]
    return sorted(found, key=lambda g: (-g["usd_micros"], g["group"]))


def _group_of(line: Json, by: str) -> str:
    kind, _, tag = by.partition(":")
    found = line["tags"].get(tag) if kind == "tag" else line[kind]
    return str(found) if found not in (None, "") else NOBODY


def as_csv(lines: Sequence[Json]) -> str:
    """CSV with one line for each machine, of COLUMNS; amounts in US dollars, tags as name=value joined by ;."""
    text = io.StringIO()
    rows = csv.DictWriter(text, COLUMNS, extrasaction="ignore", lineterminator="\n")
    rows.writeheader()
    for line in lines:
        spent, listed = line["usd_micros"] / 1e6, line["usd_micros_on_demand"] / 1e6
        amounts = {"usd": f"{spent:.6f}", "usd_on_demand": f"{listed:.6f}", "usd_saved": f"{listed - spent:.6f}"}
        amounts["usd_transfer"] = f"{line['transfer_usd_micros'] / 1e6:.6f}"
        tags = ";".join(f"{name}={value}" for name, value in sorted(line["tags"].items()))
        rows.writerow({**line, **amounts, "tags": tags})
    return text.getvalue()


def repeated_seconds(job: Json) -> float:
    """Running time that was lost with a machine and had to be repeated, by the last report of each machine.

    An attempt that ended neither drained nor finished loses its work since its newest durable checkpoint;
    a later attempt that went on repeated that work.
    """
    granted = [a for a in job["attempts"] if a["granted_at"] is not None]
    nothing = job["spec"]["engine"] == "none"  # drained without saving
    lost = [a for a, after in pairwise(granted) if nothing or a["agent_state"] not in ALL_SAVED or _began_again(a, after)]
    return float(sum(a["unsaved_seconds"] or 0.0 for a in lost))


def _began_again(a: Json, after: Json) -> bool:
    """Whether it was drained in an unprotected step, before its first checkpoint."""
    return bool(a["agent_state"] == "drained" and after["from_checkpoint"] is None)


def _sum(lines: Sequence[Json]) -> Json:
    return {key: sum(line[key] for line in lines) for key in SUMMED}


def _amounts(line: Json) -> list[str]:
    spent, listed = line["usd_micros"], line["usd_micros_on_demand"]
    return [duration(line["seconds"]), money(spent), money(listed), money(listed - spent)]


def _cost(line: Json) -> list[str]:
    began = when(line["began_at"])[:10] if line["began_at"] else "-"
    return [
        *(line["job"], str(line["attempt"]), began, line["pool"].rsplit("/", 1)[-1], line["market"]),
        *(*_amounts(line), line["ended"]),
    ]
