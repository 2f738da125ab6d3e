"""`spotsurfer backtest deadline|interval|placement|size`: what would a policy have cost?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotsurfer.cli.common import CONTEXT, examples
from spotsurfer.cli.printing import put
from spotsurfer.common.units import parse_bytes
from spotsurfer.model.errors import UsageError
from spotsurfer_lab.cli.common import (
    Availability,
    DeadlineHours,
    Every,
    Html,
    JobHours,
    OnDemand,
    OwnHistory,
    Policies,
    RestartHours,
    Settings,
    Source,
    TickSeconds,
    Unknown,
    Windows,
    market,
    names_of,
    progress,
    put_comparison,
    save_page,
    settings_of,
    show,
    terms_of,
)

if TYPE_CHECKING:
    from spotsurfer.core.scheduling.rightsizing import Usage
    from spotsurfer.ports.policies import Floats, Terms
    from spotsurfer_lab.markets import Trace
    from spotsurfer_lab.results import Comparison
    from spotsurfer_lab.size_backtest import Rides, World


# ---- `deadline`: the cost of finishing a job in time

DEADLINE_POLICIES = "surf,uniform-progress,greedy,on-demand,optimum"


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
    policy: Policies = DEADLINE_POLICIES,
    settings: Settings = None,
    every: Every = 1,
    html: Html = None,
) -> None:
    """Play a job with a deadline on recorded availability: each pool and window is one run."""
    from spotsurfer_lab import deadline_backtest, results

    terms = terms_of(tick_seconds, job_hours, deadline_hours, restart_hours, spot, on_demand)
    trace, begins, about = market(Source(availability, windows, own_history, unknown, tick_seconds, every))
    names, chosen = names_of(policy), settings_of(settings)

    def play(at: Terms, rows: Sequence[int]) -> Comparison:
        starts = [r + trace.first for r in rows]
        return deadline_backtest.compare(trace, starts, at, names, lambda *_: None, chosen).comparison

    with progress("runs") as step:
        match = deadline_backtest.compare(trace, begins, terms, names, step, chosen)
    if html is not None:
        with progress("deadlines") as step:
            match.plots.extend(results.plots(play, lambda ticks: trace.windows(begins, ticks), terms, step))
    show(match, html, about)


# ---- `interval`: how often to save a job on machines with recorded lives

INTERVAL_POLICIES = "surf,young,daly,fixed,never,optimum"


def interval(  # noqa: PLR0913 - one parameter an option
    lifetimes: Annotated[Path, typer.Option(help="CSV: lifetime_s, end (preempted, or anything else = given back).")],
    job_hours: Annotated[float, typer.Option(min=0.1, help="Work of each job.")] = 8.0,
    save_seconds: Annotated[float, typer.Option(min=0.1, help="The job stands still so long for a save.")] = 120.0,
    restart_seconds: Annotated[float, typer.Option(min=0.0, help="From a loss until the job runs again.")] = 240.0,
    notice_seconds: Annotated[float, typer.Option(min=0.0, help="Between a notice and the loss; 0 = no notices.")] = 0.0,
    recall: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of the losses that a notice comes before.")] = 1.0,
    jobs: Annotated[int, typer.Option(min=1, help="One after the other, learning from those before.")] = 200,
    fleets: Annotated[int, typer.Option(min=1, help="Each begins knowing nothing.")] = 5,
    policy: Policies = INTERVAL_POLICIES,
    html: Html = None,
) -> None:
    """Play jobs on machines that live as long as recorded ones; policies learn the hazard as they go."""
    from spotsurfer_lab import interval_backtest
    from spotsurfer_lab.interval_backtest import Fleet, hazard, read_lifetimes

    truth = hazard(read_lifetimes(lifetimes))
    fleet = Fleet(truth, job_hours * 3600, save_seconds, restart_seconds, notice_seconds, recall, jobs)
    with progress("fleets") as step:
        match = interval_backtest.compare(fleet, fleets, names_of(policy), step)
    show(match, html)


# ---- `placement`: the cost of a job that may move freely between pools

PLOT_WINDOWS = 5  # a run of several pools takes seconds
PLACEMENT_POLICIES = "surf,history,first-free,best-single-zone,optimum"


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
    policy: Policies = PLACEMENT_POLICIES,
    every: Every = 1,
    html: Html = None,
) -> None:
    """Play a job with a deadline on several pools at once: it may move at will, each window is one run."""
    import numpy as np

    from spotsurfer.core.scheduling.deadline_simulation import ticks_of
    from spotsurfer_lab import placement_backtest, results
    from spotsurfer_lab.placement_backtest import Zones

    terms = terms_of(tick_seconds, job_hours, deadline_hours, restart_hours, spot or 0.0, on_demand)
    trace, begins, about = market(Source(availability, windows, own_history, unknown, tick_seconds, every))
    usd = _usd(trace, spot, prices)
    zones = Zones(trace.pools, trace.up, usd, np.full(len(trace.pools), on_demand), state_gb * usd_per_gb)
    rows = trace.windows(begins, ticks_of(terms))
    setting = placement_backtest.Setting(zones, terms, rows, round(history_hours * 3600 / tick_seconds))
    names = names_of(policy)

    def play(at: Terms, rows: Sequence[int]) -> Comparison:
        return placement_backtest.compare(replace(setting, terms=at, starts=rows), names, lambda *_: None).comparison

    with progress("runs") as step:
        match = placement_backtest.compare(setting, names, step)
    if html is not None:
        with progress("deadlines") as step:
            match.plots.extend(results.plots(play, lambda ticks: trace.windows(begins, ticks)[:PLOT_WINDOWS], terms, step))
    show(match, html, about)


def _usd(trace: Trace, spot: float | None, prices: Path | None) -> Floats:
    """Spot prices as an array. Raises UsageError, InputMissing."""
    import numpy as np

    from spotsurfer_lab.markets import read_prices

    if (spot is None) == (prices is None):
        raise UsageError("Give either --spot, one price for all pools, or --prices, a file.")
    return read_prices(prices, trace) if prices is not None else np.full(trace.up.shape, spot)


# ---- `size`: the cost of a recorded run on machines that change their size under it

TITLE = "A run on machines of changing size"
COLUMNS = ("usd", "moves", "near_misses", "oom", "stretch", "saving_against_best_fixed")
SIZE_POLICIES = "surf,threshold,best-fixed,optimum"


def size(  # noqa: PLR0913 - one parameter an option
    usage: Annotated[Path, typer.Option(help="CSV: t_s, rss_mib, cpu_cores; a line a sample, what was used since the last.")],
    types: Annotated[str, typer.Option(help="Types to choose from, with * and commas between.")],
    request: Annotated[str, typer.Option(help="The type that the user asked for; the run begins on it.")],
    scale_memory: Annotated[str | None, typer.Option(help="Peak of memory, e.g. 60GiB.", show_default=False)] = None,
    scale_cores: Annotated[float | None, typer.Option(min=0.01, help="Peak of cores.", show_default=False)] = None,
    hours: Annotated[float | None, typer.Option(min=0.01, max=2000, help="Length of the run.", show_default=False)] = None,
    move_seconds: Annotated[float, typer.Option(min=0.0, help="The job stands still, and both machines are paid.")] = 60.0,
    policy: Policies = SIZE_POLICIES,
    settings: Settings = None,
    history: Annotated[
        list[Path] | None, typer.Option(help="An earlier run of the same step, scaled alike; repeatable.", show_default=False)
    ] = None,
    threads: Annotated[float | None, typer.Option(min=0.01, help="Cores the job can use; default: its peak.")] = None,
    moves_per_hour: Annotated[int, typer.Option(min=3, help="Never more than so many.")] = 12,
    max_cpu_factor: Annotated[float, typer.Option(min=1, help="Types of at most so many times the cores of --request.")] = 4.0,
    max_memory_factor: Annotated[float, typer.Option(min=1, help="The same for memory.")] = 4.0,
    spot: Annotated[bool, typer.Option("--spot", help="Spot prices (on-demand less the advisor's saving).")] = False,
    guard: Annotated[bool, typer.Option(help="Freeze and move up at 95 % of memory; without, the job is killed.")] = True,
    html: Html = None,
    catalog: Annotated[str, typer.Option(help="Installed catalogue of types and prices.")] = "aws-us-east-1",
) -> None:
    """Play a recorded run on machines of changing size: dollars, moves, near misses, and how far it was stretched.

    The page of --html has the timeline of each policy: what the run wanted, and what its machine had.
    """
    from spotsurfer.common.charts import page
    from spotsurfer.ports.policies import SizeTerms
    from spotsurfer_lab.markets import read_usage
    from spotsurfer_lab.size_backtest import World, allowed, compare, kinds_like, plots

    kinds, start = allowed(
        kinds_like(catalog, [t.strip() for t in types.split(",") if t.strip()], spot),
        request,
        max_cpu_factor,
        max_memory_factor,
    )
    run = _scaled(read_usage(usage), hours, scale_memory, scale_cores)
    earlier = tuple(_scaled(read_usage(p), hours, scale_memory, scale_cores).kept() for p in history or [])
    wide = threads if threads is not None else float(run.cores.max())
    world = World(run, SizeTerms(kinds, start, move_seconds, wide, earlier), guard, moves_per_hour=moves_per_hour)
    with progress("policies") as step:
        rides = compare(world, names_of(policy), step, settings_of(settings))
    columns, rows = _rows(rides)
    put_comparison(TITLE, _told(world, usage), rides.figures(), (columns, rows))
    for name, ride in rides.by_policy.items():
        if ride.alarm:
            put(f"{name}: {ride.alarm}")
    if html is not None:
        save_page(html, page(TITLE, _told(world, usage), columns, rows, plots(rides.by_policy, kinds)))


def _scaled(raw: Usage, hours: float | None, memory: str | None, cores: float | None) -> Usage:
    """The usage at another length, memory or number of cores. Raises UsageError."""
    try:
        peak = None if memory is None else parse_bytes(memory)
    except ValueError as e:
        raise UsageError(f"--scale-memory: {e}") from e
    if peak is not None and peak <= 0:
        raise UsageError("--scale-memory must be above 0, e.g. 60GiB.")
    return raw.scaled(hours, peak, cores)


def _told(world: World, usage: Path) -> dict[str, object]:
    return {
        "usage": usage.name,
        "hours": round(world.usage.total_seconds / 3600, 4),
        "peak_gib": round(float(world.usage.memory_bytes.max()) / 2**30, 3),
        "peak_cores": round(float(world.usage.cores.max()), 2),
        "move_seconds": world.terms.move_seconds,
        "request": world.terms.kinds[world.terms.start].name,
        "types": len(world.terms.kinds),
        "guard": world.guard,
    }


def _rows(rides: Rides) -> tuple[list[str], list[list[str]]]:
    """Headings, and one row for each policy."""
    rows = [[name, *(_cell(c, one[c]) for c in COLUMNS)] for name, one in rides.figures().items()]
    return ["policy", *(c.replace("_", " ") for c in COLUMNS)], rows


def _cell(column: str, value: object) -> str:
    if column == "saving_against_best_fixed" and isinstance(value, float):
        return f"{100 * value:.1f} %"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


# ---- The group

EXAMPLES: dict[Callable[..., None], tuple[str, ...]] = {
    deadline: (
        "spotsurfer backtest deadline --availability A.csv.gz --windows W.csv --job-hours 48 --deadline-hours 70 "
        "--restart-hours 0.2 --on-demand 3.06 --spot 0.9731 --policy surf,greedy,optimum --json",
        "spotsurfer backtest deadline --own-history 30 --job-hours 12 --deadline-hours 20 --restart-hours 0.1 "
        "--on-demand 3.06 --spot 0.9731 --html month.html",
    ),
    placement: (
        "spotsurfer backtest placement --availability A.csv.gz --windows W.csv --tick-seconds 195 --job-hours 48 "
        "--deadline-hours 70 --restart-hours 0.2 --on-demand 3.06 --prices P.csv.gz --state-gb 50 --policy surf,optimum --json",
    ),
    interval: (
        "spotsurfer backtest interval --lifetimes L.csv.gz --job-hours 8 --save-seconds 120 --policy surf,young,optimum --json",
    ),
    size: (
        "spotsurfer backtest size --usage U.csv.gz --scale-memory 60GiB --scale-cores 8 --hours 24 --move-seconds 60 "
        "--types 'c6i.*,m6i.*,r6i.*' --request r6i.4xlarge --json",
        "spotsurfer backtest size --usage U.csv --types 'm6i.*' --request m6i.xlarge --set surf.stretch=1.3",
        "spotsurfer backtest size --usage today.csv --history yesterday.csv --types 'r6i.*' --request r6i.2xlarge "
        "--html run.html",
    ),
}


def add(app: typer.Typer) -> None:
    """Register the group and its sub-commands."""
    group = typer.Typer(
        name="backtest",
        help="Try policies on recorded or made-up markets: what would they have cost?",
        epilog=examples(*(lines[0] for lines in EXAMPLES.values())),
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings=CONTEXT,
    )
    for command, lines in EXAMPLES.items():
        group.command(epilog=examples(*lines))(command)
    app.add_typer(group)
