"""`spotsurfer backtest placement`: what would it have cost to move a job between pools at will?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
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
from spotsurfer.cli.backtests.show import Html, progress, show
from spotsurfer.cli.common import AsJson, examples
from spotsurfer.model.errors import UsageError

if TYPE_CHECKING:
    from spotsurfer.ports.purchase import Floats, Terms
    from spotsurfer.sim.outcome import Comparison
    from spotsurfer.sim.traces import Trace

PLOT_WINDOWS = 5  # a run of several pools takes seconds
DEFAULT_POLICIES = "surf,history,first-free,best-single-zone,optimum"


def add(group: typer.Typer) -> None:
    """Register the sub-command."""
    line = (
        "spotsurfer backtest placement --availability A.csv.gz --windows W.csv --tick-seconds 195 --job-hours 48 "
        "--deadline-hours 70 --restart-hours 0.2 --on-demand 3.06 --prices P.csv.gz --state-gb 50 --policy surf,optimum --json"
    )
    group.command(name="placement", epilog=examples(line))(placement)


def placement(  # noqa: PLR0913 - one parameter an option
    job_hours: JobHours,
    deadline_hours: DeadlineHours,
    restart_hours: RestartHours,
    on_demand: OnDemand,
    spot: Annotated[float | None, typer.Option(min=0.0, help="USD an hour, in every pool.", show_default=False)] = None,
    prices: Annotated[
        Path | None, typer.Option(help="CSV: tick, then a price a pool; instead of --spot.", show_default=False)
    ] = None,
    state_gb: Annotated[float, typer.Option(min=0.0, help="What a move to another pool transfers.")] = 0.0,
    usd_per_gb: Annotated[float, typer.Option(min=0.0, help="Price of that.")] = 0.02,
    availability: Availability = None,
    windows: Windows = None,
    own_history: OwnHistory = None,
    unknown: Unknown = "last",
    tick_seconds: TickSeconds = 600.0,
    history_hours: Annotated[float, typer.Option(min=0.0, help="What was seen before a window begins is known.")] = 24.0,
    policy: Policies = DEFAULT_POLICIES,
    every: Every = 1,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Play a job with a deadline on several pools at once: it may move at will, each window is one run."""
    import numpy as np

    from spotsurfer.sim import slack, zonecontest
    from spotsurfer.sim.deadline import ticks_of
    from spotsurfer.sim.zones import Zones

    terms = terms_of(tick_seconds, job_hours, deadline_hours, restart_hours, spot or 0.0, on_demand)
    played = market(Source(availability, windows, own_history, unknown, tick_seconds, every))
    trace = played.trace
    usd = _usd(trace, spot, prices)
    zones = Zones(trace.pools, trace.up, usd, np.full(len(trace.pools), on_demand), state_gb * usd_per_gb)
    rows = trace.windows(played.starts, ticks_of(terms))
    setting = zonecontest.Setting(zones, terms, rows, round(history_hours * 3600 / tick_seconds))
    names = names_of(policy)

    def play(at: Terms, rows: Sequence[int]) -> Comparison:
        return zonecontest.compare(replace(setting, terms=at, starts=rows), names, lambda *_: None).comparison

    with progress("runs") as step:
        match = zonecontest.compare(setting, names, step)
    if html is not None:
        with progress("deadlines") as step:
            match.plots.extend(slack.plots(play, lambda ticks: trace.windows(played.starts, ticks)[:PLOT_WINDOWS], terms, step))
    show(match, as_json, html, played.about)


def _usd(trace: Trace, spot: float | None, prices: Path | None) -> Floats:
    """Raises UsageError, InputMissing."""
    import numpy as np

    from spotsurfer.sim.prices import read_prices

    if (spot is None) == (prices is None):
        raise UsageError("Give either --spot, one price for all pools, or --prices, a file.")
    return read_prices(prices, trace) if prices is not None else np.full(trace.up.shape, spot)
