"""The market that a back-test plays: recorded files, or what this controller saw itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotsurfer.cli.common import SESSION
from spotsurfer.cli.screen import tell
from spotsurfer.model.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spotsurfer.sim.history import Past
    from spotsurfer.sim.traces import Records, Trace

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
    """Where a market comes from, as the options say it."""

    availability: Path | None
    windows: Path | None
    own_days: float | None
    unknown: str
    tick_seconds: float
    every: int = 1


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is played; `about` is told with the figures."""

    trace: Trace
    starts: list[int]
    about: Mapping[str, object] = field(default_factory=dict)


def market(source: Source) -> Recorded:
    """Raises UsageError, InputMissing, ControllerUnreachable."""
    from spotsurfer.sim.traces import read_trace, read_windows

    if source.own_days is not None and (source.availability is not None or source.windows is not None):
        raise UsageError("Give either --own-history DAYS, or --availability and --windows.")
    if source.own_days is not None:
        return _own(source, source.own_days)
    if source.availability is None or source.windows is None:
        raise UsageError("Give --availability and --windows, or --own-history DAYS for what this controller saw.")
    return Recorded(read_trace(source.availability), read_windows(source.windows)[:: source.every])


def own_records(days: float, tick_seconds: float) -> Records:
    """What this controller saw in so many days. Raises InputMissing, ControllerUnreachable."""
    from spotsurfer.sim.history import records_of_own

    rows = SESSION.client().get("/v1/spots")["spots"]
    return records_of_own(rows, tick_seconds, datetime.now(UTC), days)  # noqa: TID251 - the user's "last month"


def _own(source: Source, days: float) -> Recorded:
    from spotsurfer.sim.history import UNKNOWN, past_of

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
    return Recorded(past.trace, past.starts[:: source.every], about)


def _warn(past: Past, source: Source) -> None:
    """On stderr: how much of the market is a guess."""
    missing = 1 - float(past.known.mean())
    if missing > 0:
        guess = {"last": "as it was seen last", "free": "free", "none": "not free"}[source.unknown]
        bounds = "" if source.unknown != "last" else " `--unknown free` and `--unknown none` give the bounds."
        tell(f"For {missing:.0%} of the time nobody knew whether spot could be had; it is taken to be {guess}.{bounds}")
    if past.left_out:
        tell(f"Left out, for too little is known of them: {', '.join(past.left_out)}.")
