"""`spotsurfer backtest interval`: how often should a job be saved on machines that live so long?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spotsurfer.cli.backtests.options import Policies, names_of
from spotsurfer.cli.backtests.show import Html, progress, show
from spotsurfer.cli.common import AsJson, examples

DEFAULT_POLICIES = "surf,young,daly,fixed,never,optimum"


def add(group: typer.Typer) -> None:
    """Register the sub-command."""
    line = (
        "spotsurfer backtest interval --lifetimes L.csv.gz --job-hours 8 --save-seconds 120 --policy surf,young,optimum --json"
    )
    group.command(name="interval", epilog=examples(line))(interval)


def interval(  # noqa: PLR0913 - one parameter an option
    lifetimes: Annotated[Path, typer.Option(help="CSV: lifetime_s, end (preempted, or anything else = given back).")],
    job_hours: Annotated[float, typer.Option(min=0.1, help="Work of each job.")] = 8.0,
    save_seconds: Annotated[float, typer.Option(min=0.1, help="The job stands still so long for a save.")] = 120.0,
    restart_seconds: Annotated[float, typer.Option(min=0.0, help="From a loss until the job runs again.")] = 240.0,
    notice_seconds: Annotated[float, typer.Option(min=0.0, help="Between a notice and the loss; 0 = no notices.")] = 0.0,
    recall: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of the losses that a notice comes before.")] = 1.0,
    jobs: Annotated[int, typer.Option(min=1, help="One after the other, learning from those before.")] = 200,
    fleets: Annotated[int, typer.Option(min=1, help="Each begins knowing nothing.")] = 5,
    policy: Policies = DEFAULT_POLICIES,
    html: Html = None,
    as_json: AsJson = False,
) -> None:
    """Play jobs on machines that live as long as recorded ones; policies learn the hazard as they go."""
    from spotsurfer.sim import savecontest
    from spotsurfer.sim.saving import Fleet, hazard, read_lifetimes

    truth = hazard(read_lifetimes(lifetimes))
    fleet = Fleet(truth, job_hours * 3600, save_seconds, restart_seconds, notice_seconds, recall, jobs)
    with progress("fleets") as step:
        match = savecontest.compare(fleet, fleets, names_of(policy), step)
    show(match, as_json, html)
