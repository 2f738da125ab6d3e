"""`spotsurfer backtest size`: what would a recorded run have cost on machines that change their size under it?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotsurfer.cli.backtests.options import Policies, names_of
from spotsurfer.cli.backtests.show import Html, Settings, progress, save_page, settings_of
from spotsurfer.cli.common import AsJson, examples
from spotsurfer.cli.screen import put, put_json, table
from spotsurfer.model.errors import UsageError
from spotsurfer.units import parse_bytes

if TYPE_CHECKING:
    from spotsurfer.sim.sizecontest import Rides
    from spotsurfer.sim.sizing import World
    from spotsurfer.sim.usage import Usage

TITLE = "A run on machines of changing size"
COLUMNS = ("usd", "moves", "near_misses", "oom", "stretch", "saving_against_best_fixed")
DEFAULT_POLICIES = "surf,threshold,best-fixed,optimum"
LINES = (
    "spotsurfer backtest size --usage U.csv.gz --scale-memory 60GiB --scale-cores 8 --hours 24 --move-seconds 60 "
    "--types 'c6i.*,m6i.*,r6i.*' --request r6i.4xlarge --json",
    "spotsurfer backtest size --usage U.csv --types 'm6i.*' --request m6i.xlarge --set surf.stretch=true",
    "spotsurfer backtest size --usage today.csv --history yesterday.csv --types 'r6i.*' --request r6i.2xlarge --html run.html",
)


def add(group: typer.Typer) -> None:
    """Register the sub-command."""
    group.command(name="size", epilog=examples(*LINES))(size)


def size(  # noqa: PLR0913 - one parameter an option
    usage: Annotated[Path, typer.Option(help="CSV: t_s, rss_mib, cpu_cores; a line a sample, what was used since the last.")],
    types: Annotated[str, typer.Option(help="Types to choose from, with * and commas between.")],
    request: Annotated[str, typer.Option(help="The type that the user asked for; the run begins on it.")],
    scale_memory: Annotated[str | None, typer.Option(help="Peak of memory, e.g. 60GiB.", show_default=False)] = None,
    scale_cores: Annotated[float | None, typer.Option(min=0.01, help="Peak of cores.", show_default=False)] = None,
    hours: Annotated[float | None, typer.Option(min=0.01, max=2000, help="Length of the run.", show_default=False)] = None,
    move_seconds: Annotated[float, typer.Option(min=0.0, help="The job stands still, and both machines are paid.")] = 60.0,
    policy: Policies = DEFAULT_POLICIES,
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
    as_json: AsJson = False,
) -> None:
    """Play a recorded run on machines of changing size: dollars, moves, near misses, and how far it was stretched.

    The page of --html has the timeline of each policy: what the run wanted, and what its machine had.
    """
    from spotsurfer.ports.size import SizeTerms
    from spotsurfer.sim.catalogue import allowed, kinds_like
    from spotsurfer.sim.sizecontest import compare
    from spotsurfer.sim.sizing import World
    from spotsurfer.sim.usage import read_usage

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
    _show(rides, _told(world, usage), as_json)
    if html is not None:
        _page(html, rides, world, usage)


def _scaled(raw: Usage, hours: float | None, memory: str | None, cores: float | None) -> Usage:
    """Raises UsageError."""
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


def _show(rides: Rides, told: Mapping[str, object], as_json: bool) -> None:
    found = rides.figures()
    if as_json:
        put_json({"title": TITLE, "settings": told, "policies": found})
        return
    put(TITLE)
    put(", ".join(f"{key} {value}" for key, value in told.items()))
    put()
    table(*_rows(rides))
    for name, one in found.items():
        if "alarm" in one:
            put(f"{name}: {one['alarm']}")


def _rows(rides: Rides) -> tuple[list[str], list[list[str]]]:
    """Headings, and a row a policy."""
    rows = [[name, *(_cell(c, one[c]) for c in COLUMNS)] for name, one in rides.figures().items()]
    return ["policy", *(c.replace("_", " ") for c in COLUMNS)], rows


def _page(path: Path, rides: Rides, world: World, usage: Path) -> None:
    from spotsurfer.sim.page import page
    from spotsurfer.sim.sizelines import plots

    columns, rows = _rows(rides)
    save_page(path, page(TITLE, _told(world, usage), columns, rows, plots(rides.by_policy, world.terms.kinds)))


def _cell(column: str, value: object) -> str:
    if column == "saving_against_best_fixed" and isinstance(value, float):
        return f"{100 * value:.1f} %"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
