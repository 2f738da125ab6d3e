"""The shared parts of back-test commands: options, the choice of a market, progress and output."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spotsurfer.cli.common import SESSION, write
from spotsurfer.cli.printing import console, put, put_json, table, tell
from spotsurfer.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spotsurfer.common.charts import Plot
    from spotsurfer.ports.policies import Terms
    from spotsurfer_lab.markets import Past, Records, Trace
    from spotsurfer_lab.results import Comparison, Match, Step


# ---- Options

JobHours = Annotated[float, typer.Option(min=0.01, help="Work of the job.")]
DeadlineHours = Annotated[float, typer.Option(min=0.01, help="Time it has.")]
RestartHours = Annotated[float, typer.Option(min=0.0, help="Paid at each launch, without progress.")]
OnDemand = Annotated[float, typer.Option(min=0.0, help="USD an hour, in every pool.")]
TickSeconds = Annotated[float, typer.Option(min=1.0, help="Length of a tick of the trace.")]
Every = Annotated[int, typer.Option(min=1, help="Only each so-many-th window.")]
Policies = Annotated[str, typer.Option("--policy", help="Names with commas between; `optimum` knows what others can't.")]


def names_of(policies: str) -> list[str]:
    """Each name once, in this order. Raises UsageError if there is none."""
    names = list(dict.fromkeys(n.strip() for n in policies.split(",") if n.strip()))
    if not names:
        raise UsageError("--policy names none: give names with commas between, e.g. --policy surf,optimum.")
    return names


def terms_of(
    tick_seconds: float, job_hours: float, deadline_hours: float, restart_hours: float, spot: float, on_demand: float
) -> Terms:
    """The job's terms. Raises UsageError if even on-demand could not meet the deadline."""
    from spotsurfer.ports.policies import Terms

    if deadline_hours < job_hours + restart_hours:
        raise UsageError(
            "--deadline-hours leaves no time: even on-demand needs --job-hours and --restart-hours. Give the job more time."
        )
    return Terms(tick_seconds, job_hours * 3600, deadline_hours * 3600, restart_hours * 3600, spot, on_demand)


# ---- Market: recorded files, or this controller's own observations.

Availability = Annotated[
    Path | None, typer.Option(help="CSV: tick, then one column a pool; 1 = spot could be had.", show_default=False)
]
Windows = Annotated[Path | None, typer.Option(help="CSV with a column start_tick: where runs begin.", show_default=False)]
OwnHistory = Annotated[
    float | None,
    typer.Option(
        "--own-history",
        min=0.01,
        metavar="DAYS",
        help="Instead of files: what this controller saw in so many days, a window a day.",
        show_default=False,
    ),
]
Unknown = Annotated[
    str, typer.Option(help="With --own-history, where nobody knew: last (as seen last), free or none (the two bounds).")
]


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a market, from the options."""

    availability: Path | None
    windows: Path | None
    own_days: float | None
    unknown: str
    tick_seconds: float
    every: int = 1


def market(source: Source) -> tuple[Trace, list[int], Mapping[str, object]]:
    """The market, the starts of runs, and facts to tell. Raises UsageError, InputMissing, ControllerUnreachable."""
    from spotsurfer_lab.markets import read_trace, read_windows

    if source.own_days is not None and (source.availability is not None or source.windows is not None):
        raise UsageError("Give either --own-history DAYS, or --availability and --windows.")
    if source.own_days is not None:
        return _own(source, source.own_days)
    if source.availability is None or source.windows is None:
        raise UsageError("Give --availability and --windows, or --own-history DAYS for what this controller saw.")
    return read_trace(source.availability), read_windows(source.windows)[:: source.every], {}


def own_records(days: float, tick_seconds: float) -> Records:
    """This controller's observations of so many days. Raises InputMissing, ControllerUnreachable."""
    from spotsurfer_lab.markets import records_of_own

    rows = SESSION.client().get("/v1/spots")["spots"]
    return records_of_own(rows, tick_seconds, datetime.now(UTC), days)  # noqa: TID251 - the user's "last month"


def _own(source: Source, days: float) -> tuple[Trace, list[int], Mapping[str, object]]:
    from spotsurfer_lab.markets import UNKNOWN, past_of

    if source.unknown not in UNKNOWN:
        raise UsageError(f"--unknown {source.unknown!r} is none of {', '.join(UNKNOWN)}.")
    past = past_of(own_records(days, source.tick_seconds), source.tick_seconds, source.unknown)
    _warn(past, source)
    about: dict[str, object] = {
        "own_history_days": round(len(past.trace.up) * source.tick_seconds / 86400, 2),
        "known_share": round(float(past.known.mean()), 3),
        "unknown": source.unknown,
        "pools_left_out": len(past.left_out),
    }
    return past.trace, past.starts[:: source.every], about


def _warn(past: Past, source: Source) -> None:
    """Report on stderr how much of the market is a guess."""
    missing = 1 - float(past.known.mean())
    if missing > 0:
        guess = {"last": "as it was seen last", "free": "free", "none": "not free"}[source.unknown]
        bounds = "" if source.unknown != "last" else " `--unknown free` and `--unknown none` give the bounds."
        tell(f"For {missing:.0%} of the time nobody knew whether spot could be had; it is taken to be {guess}.{bounds}")
    if past.left_out:
        tell(f"Left out, for too little is known of them: {', '.join(past.left_out)}.")


# ---- Output: a progress bar at work, then a table, JSON, or a page with plots.

Html = Annotated[Path | None, typer.Option("--html", help="Write a page with plots here.", show_default=False)]

Settings = Annotated[list[str] | None, typer.Option("--set", help="POLICY.KEY=value; repeatable.", show_default=False)]


def settings_of(words: list[str] | None) -> dict[str, dict[str, object]]:
    """Settings by policy; values as in TOML, anything else is a text. Raises UsageError."""
    found: dict[str, dict[str, object]] = {}
    for word in words or []:
        name, equals, text = word.partition("=")
        policy, dot, key = name.partition(".")
        if not equals or not dot or not policy or not key:
            raise UsageError(f"--set {word!r} is not like POLICY.KEY=value, e.g. surf.strange=0.1.")
        try:
            value: object = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        found.setdefault(policy, {})[key] = value
    return found


@contextmanager
def progress(title: str) -> Iterator[Step]:
    """A bar on stderr, only on a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    screen = console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def show(match: Match, html: Path | None = None, about: Mapping[str, object] | None = None) -> None:
    """Print the figures of each policy, and write the page if requested.

    `about`: further facts about the market. Raises UsageError."""
    from spotsurfer_lab.results import figures

    comparison = replace(match.comparison, settings={**match.comparison.settings, **(about or {})})
    found = figures(comparison)
    if html is not None:
        _page(html, comparison, found, match.plots)
    columns = [c for c in next(iter(found.values()), {}) if c != "intervals_95"]
    rows = [[name, *(_cell(c, one) for c in columns)] for name, one in found.items()]
    put_comparison(comparison.title, comparison.settings, found, (["policy", *columns], rows))


def put_comparison(
    title: str,
    settings: Mapping[str, object],
    found: Mapping[str, Mapping[str, object]],
    told: tuple[list[str], list[list[str]]],
) -> None:
    """Figures by policy: as JSON, or as `told`, columns and rows of a table for people."""
    if put_json({"title": title, "settings": dict(settings), "policies": found}):
        return
    put(title)
    put(", ".join(f"{key} {value}" for key, value in settings.items()))
    put()
    table(*told)


def _cell(column: str, figures: dict[str, Any]) -> str:
    if column not in figures:
        return "-"
    text, interval = number(column, figures[column]), figures["intervals_95"].get(column)
    return text if interval is None else f"{text} ({number(column, interval[0])} to {number(column, interval[1])})"


def number(column: str, value: float) -> str:
    """A figure for people: gaps in per cent, counts whole, all else with two decimals."""
    if "gap" in column:
        return f"{100 * value:.1f} %"
    return str(value) if isinstance(value, int) else f"{value:.2f}"


def _page(path: Path, comparison: Comparison, found: dict[str, dict[str, object]], plots: list[Plot]) -> None:
    from spotsurfer.common.charts import page

    columns = list(dict.fromkeys(c for one in found.values() for c in one if c != "intervals_95"))
    cells = [[name, *(_cell(c, one) for c in columns)] for name, one in found.items()]
    about = {**comparison.settings, "intervals:": "95 % of a bootstrap over windows"}
    save_page(path, page(comparison.title, about, ["policy", *columns], cells, plots))


def save_page(path: Path, text: str) -> None:
    """Write the page, and report its path. Raises OutputExists, OSError as `write` does."""
    write(path, text)
    tell(f"The page is {path}.")
