"""`spotsurfer backtest deadline`: what would it have cost to have a job done in time?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotsurfer.cli.backtests.show import Html, Settings, progress, settings_of, show
from spotsurfer.cli.common import AsJson, examples
from spotsurfer.model.errors import UsageError

if TYPE_CHECKING:
    from spotsurfer.ports.purchase import Terms

DEFAULT_POLICIES = "surf,uniform-progress,greedy,on-demand,optimum"
Hours = Annotated[float, typer.Option(min=0.0)]


def add(group: typer.Typer) -> None:
    """Register the sub-command."""
    line = (
        "spotsurfer backtest deadline --availability A.csv.gz --windows W.csv --job-hours 48 --deadline-hours 70 "
        "--restart-hours 0.2 --on-demand 3.06 --spot 0.9731 --policy surf,greedy,optimum --json"
    )
    group.command(name="deadline", epilog=examples(line))(deadline)


def deadline(  # noqa: PLR0913 - one parameter an option
    availability: Annotated[Path, typer.Option(help="CSV: tick, then one column a pool; 1 = spot could be had.")],
    windows: Annotated[Path, typer.Option(help="CSV with a column start_tick; each pool and window is one run.")],
    job_hours: Annotated[float, typer.Option(min=0.01, help="Work of the job.")],
    deadline_hours: Annotated[float, typer.Option(min=0.01, help="Time it has.")],
    restart_hours: Annotated[float, typer.Option(min=0.0, help="Paid at each launch, without progress.")],
    on_demand: Annotated[float, typer.Option(min=0.0, help="USD an hour.")],
    spot: Annotated[float, typer.Option(min=0.0, help="USD an hour.")],
    tick_seconds: Annotated[float, typer.Option(min=1.0, help="Length of a tick of the trace.")] = 600.0,
    policy: Annotated[str, typer.Option(help="Names with commas between; `optimum` knows the future.")] = DEFAULT_POLICIES,
    settings: Settings = None,
    every: Annotated[int, typer.Option(min=1, help="Only each so-many-th window.")] = 1,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Play a job with a deadline on recorded availability: each pool and window is one run."""
    from spotsurfer.ports.purchase import Terms
    from spotsurfer.sim import contest
    from spotsurfer.sim.traces import read_trace, read_windows

    terms = Terms(tick_seconds, job_hours * 3600, deadline_hours * 3600, restart_hours * 3600, spot, on_demand)
    _check(terms)
    trace, starts = read_trace(availability), read_windows(windows)[::every]
    names = list(dict.fromkeys(n.strip() for n in policy.split(",") if n.strip()))
    with progress("runs") as step:
        match = contest.compare(trace, starts, terms, names, step, settings_of(settings))
    show(match.comparison, as_json, html, match.plots if html is not None else [])


def _check(terms: Terms) -> None:
    """Raises UsageError."""
    if terms.deadline_seconds < terms.work_seconds + terms.restart_seconds:
        raise UsageError(
            "--deadline-hours leaves no time: even on-demand needs --job-hours and --restart-hours. Give the job more time."
        )
