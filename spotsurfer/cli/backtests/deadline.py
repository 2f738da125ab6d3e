"""`spotsurfer backtest deadline`: what would it have cost to have a job done in time?"""

from __future__ import annotations

from typing import Annotated

import typer

from spotsurfer.cli.backtests.options import (
    Availability,
    DeadlineHours,
    Every,
    JobHours,
    OnDemand,
    Policies,
    RestartHours,
    TickSeconds,
    Windows,
    names_of,
    terms_of,
)
from spotsurfer.cli.backtests.show import Html, Settings, progress, settings_of, show
from spotsurfer.cli.common import AsJson, examples

DEFAULT_POLICIES = "surf,uniform-progress,greedy,on-demand,optimum"


def add(group: typer.Typer) -> None:
    """Register the sub-command."""
    line = (
        "spotsurfer backtest deadline --availability A.csv.gz --windows W.csv --job-hours 48 --deadline-hours 70 "
        "--restart-hours 0.2 --on-demand 3.06 --spot 0.9731 --policy surf,greedy,optimum --json"
    )
    group.command(name="deadline", epilog=examples(line))(deadline)


def deadline(  # noqa: PLR0913 - one parameter an option
    availability: Availability,
    windows: Windows,
    job_hours: JobHours,
    deadline_hours: DeadlineHours,
    restart_hours: RestartHours,
    on_demand: OnDemand,
    spot: Annotated[float, typer.Option(min=0.0, help="USD an hour, in every pool.")],
    tick_seconds: TickSeconds = 600.0,
    policy: Policies = DEFAULT_POLICIES,
    settings: Settings = None,
    every: Every = 1,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Play a job with a deadline on recorded availability: each pool and window is one run."""
    from spotsurfer.sim import contest
    from spotsurfer.sim.traces import read_trace, read_windows

    terms = terms_of(tick_seconds, job_hours, deadline_hours, restart_hours, spot, on_demand)
    trace, starts = read_trace(availability), read_windows(windows)[::every]
    with progress("runs") as step:
        match = contest.compare(trace, starts, terms, names_of(policy), step, settings_of(settings))
    show(match.comparison, as_json, html, match.plots if html is not None else [])
