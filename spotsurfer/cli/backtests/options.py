"""Options and checks that back-tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from spotsurfer.model.errors import UsageError

if TYPE_CHECKING:
    from spotsurfer.ports.purchase import Terms

JobHours = Annotated[float, typer.Option(min=0.01, help="Work of the job.")]
DeadlineHours = Annotated[float, typer.Option(min=0.01, help="Time it has.")]
RestartHours = Annotated[float, typer.Option(min=0.0, help="Paid at each launch, without progress.")]
OnDemand = Annotated[float, typer.Option(min=0.0, help="USD an hour, in every pool.")]
TickSeconds = Annotated[float, typer.Option(min=1.0, help="Length of a tick of the trace.")]
Every = Annotated[int, typer.Option(min=1, help="Only each so-many-th window.")]
Policies = Annotated[str, typer.Option("--policy", help="Names with commas between; `optimum` knows what others can't.")]


def names_of(policies: str) -> list[str]:
    """Each once, in this order. Raises UsageError where there is none."""
    names = list(dict.fromkeys(n.strip() for n in policies.split(",") if n.strip()))
    if not names:
        raise UsageError("--policy names none: give names with commas between, e.g. --policy surf,optimum.")
    return names


def terms_of(
    tick_seconds: float, job_hours: float, deadline_hours: float, restart_hours: float, spot: float, on_demand: float
) -> Terms:
    """What is asked of the job. Raises UsageError where even on-demand could not meet the deadline."""
    from spotsurfer.ports.purchase import Terms

    if deadline_hours < job_hours + restart_hours:
        raise UsageError(
            "--deadline-hours leaves no time: even on-demand needs --job-hours and --restart-hours. Give the job more time."
        )
    return Terms(tick_seconds, job_hours * 3600, deadline_hours * 3600, restart_hours * 3600, spot, on_demand)
