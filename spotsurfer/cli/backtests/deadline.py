"""`spotsurfer backtest deadline`: what would it have cost to have a job done in time?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from spotsurfer.cli.backtests.markets import Availability, OwnHistory, Source, Unknown, Windows, market
from spotsurfer.cli.backtests.options import (
    DeadlineHours,
    Every,
    JobHours,
    OnDemand,
    Policies,
    RestartHours,
    TickSeconds,
    names_of,
    terms_of,
)
from spotsurfer.cli.backtests.show import Html, Settings, progress, settings_of, show
from spotsurfer.cli.common import AsJson, examples

if TYPE_CHECKING:
    from spotsurfer.ports.purchase import Terms
    from spotsurfer.sim.outcome import Comparison

DEFAULT_POLICIES = "surf,uniform-progress,greedy,on-demand,optimum"


def add(group: typer.Typer) -> None:
    """Register the sub-command."""
    line = (
        "spotsurfer backtest deadline --availability A.csv.gz --windows W.csv --job-hours 48 --deadline-hours 70 "
        "--restart-hours 0.2 --on-demand 3.06 --spot 0.9731 --policy surf,greedy,optimum --json"
    )
    own = (
        "spotsurfer backtest deadline --own-history 30 --job-hours 12 --deadline-hours 20 --restart-hours 0.1 "
        "--on-demand 3.06 --spot 0.9731 --html month.html"
    )
    group.command(name="deadline", epilog=examples(line, own))(deadline)


def deadline(  # noqa: PLR0913 - one parameter an option
    job_hours: JobHours,
    deadline_hours: DeadlineHours,
    restart_hours: RestartHours,
    on_demand: OnDemand,
    spot: Annotated[float, typer.Option(min=0.0, help="USD an hour, in every pool.")],
    availability: Availability = None,
    windows: Windows = None,
    own_history: OwnHistory = None,
    unknown: Unknown = "last",
    tick_seconds: TickSeconds = 600.0,
    policy: Policies = DEFAULT_POLICIES,
    settings: Settings = None,
    every: Every = 1,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Play a job with a deadline on recorded availability: each pool and window is one run."""
    from spotsurfer.sim import contest, slack

    terms = terms_of(tick_seconds, job_hours, deadline_hours, restart_hours, spot, on_demand)
    played = market(Source(availability, windows, own_history, unknown, tick_seconds, every))
    names, chosen, trace = names_of(policy), settings_of(settings), played.trace

    def play(at: Terms, rows: Sequence[int]) -> Comparison:
        starts = [r + trace.first for r in rows]
        return contest.compare(trace, starts, at, names, lambda *_: None, chosen).comparison

    with progress("runs") as step:
        match = contest.compare(trace, played.starts, terms, names, step, chosen)
    if html is not None:
        with progress("deadlines") as step:
            match.plots.extend(slack.plots(play, lambda ticks: trace.windows(played.starts, ticks), terms, step))
    show(match, as_json, html, played.about)
