"""The four rows of WaveRider's poster: MEGAHIT, on-demand and spot, sizes fixed and not; theirs beside ours."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from spotsurfer_lab.markets import read_trace, read_windows
from spotsurfer_lab.placement_backtest import machines_usd
from spotsurfer_lab.size_backtest import Ride, SpotTimes, Stay, World, best_fixed, optimum, play

from bench.report import Part, percent, table
from bench.size.settings import MARKETS, MEGAHIT, at_spot_prices, surf, with_history, world
from spotsurfer.ports.policies import Size

POOL, TICK_SECONDS = "us-west-2b_v100_1", 195.0
HOURS, MOVE_SECONDS = 24.0, 60.0
EARLIER = (1.15, 0.9)  # the earlier run took so much longer, and so much less memory
AGAIN = "spot, on, after an earlier run"
EVERY = 6  # windows are left out for it: it takes seconds each
THEIRS = {"on-demand, off": 9.10, "on-demand, on": 7.56, "spot, off": 2.92, "spot, on": 2.26}  # USD, as printed


def run() -> Part:
    """On-demand once; spot in each window of the recorded market, the mean of them."""
    plain = world(MEGAHIT, HOURS, MOVE_SECONDS)
    spot = at_spot_prices(plain)
    known = with_history(spot, plain.usage.times(*EARLIER))
    request, fixed = play(Stay(), plain), best_fixed(plain)
    windows = markets()
    asked = [play(Stay(), replace(spot, spot=m)) for m in windows]
    ridden = [play(surf(), replace(spot, spot=m)) for m in windows]
    best = _best_fixed_on_spot(spot, windows)
    ours = {
        "on-demand, off": [request],
        "on-demand, off, best fixed type": [fixed],
        "on-demand, on": [play(surf(), plain)],
        "on-demand, on, after an earlier run": [play(surf(), with_history(plain, plain.usage.times(*EARLIER)))],
        "spot, off": asked,
        "spot, off, best fixed type": best,
        "spot, on": ridden,
        AGAIN: [play(surf(), replace(known, spot=m)) for m in windows[::EVERY]],
    }
    rows = {name: _figures(rides, request.usd, fixed.usd, spot if "spot" in name else plain) for name, rides in ours.items()}
    total = rows["spot, on"]
    keys = {
        "poster_total_saving": total["saving_against_request"],
        "poster_total_saving_best_fixed": total["saving_against_best_fixed"],
        "poster_total_saving_by_the_second": 1 - total["usd_by_the_second"] / request.usd,
        "poster_total_saving_best_fixed_by_the_second": 1 - total["usd_by_the_second"] / fixed.usd,
        "poster_total_saving_after_an_earlier_run": rows[AGAIN]["saving_against_request"],
        "poster_total_saving_best_fixed_after_an_earlier_run": rows[AGAIN]["saving_against_best_fixed"],
        "poster_best_possible_against_best_fixed": 1 - optimum(spot).usd / fixed.usd,
        "poster_windows": len(windows),
        "poster": [{"row": name, "theirs_usd": THEIRS.get(name), **figures} for name, figures in rows.items()],
    }
    return Part(keys, {"size-poster": _table(rows)})


def markets() -> list[SpotTimes]:
    """The recorded market, a window each."""
    trace = read_trace(MARKETS / "zones-2023.csv.gz")
    up = trace.up[:, trace.pools.index(POOL)]
    ticks = int(2 * HOURS * 3600 / TICK_SECONDS)
    starts = trace.windows(read_windows(MARKETS / "zones-2023-windows.csv"), ticks)
    return [SpotTimes(TICK_SECONDS, up[s : s + ticks]) for s in starts]


def _best_fixed_on_spot(spot: World, markets: list[SpotTimes]) -> list[Ride]:
    """The type that is cheapest on average, among those that hold the peak."""
    peak = spot.usage.memory_bytes.max()
    stay: Size = Stay()
    worlds = [
        replace(spot, terms=replace(spot.terms, start=i)) for i, k in enumerate(spot.terms.kinds) if k.usable_bytes >= peak
    ]
    rides = [[play(stay, replace(w, spot=m)) for m in markets] for w in worlds]
    return min(rides, key=lambda r: sum(x.usd for x in r))


def _figures(rides: list[Ride], request: float, fixed: float, given: World) -> dict[str, float]:
    """Means. Billed as AWS does: a machine that is taken within its first hour is free."""
    usd = float(np.mean([machines_usd(r, given.terms.kinds) for r in rides]))
    return {
        "usd": usd,
        "usd_by_the_second": float(np.mean([r.usd for r in rides])),
        "saving_against_request": 1 - usd / request,
        "saving_against_best_fixed": 1 - usd / fixed,
        "moves": float(np.mean([r.moves for r in rides])),
        "near_misses": float(np.mean([r.near_misses for r in rides])),
        "reclaims": float(np.mean([r.reclaims for r in rides])),
        "elapsed": float(np.mean([r.elapsed_seconds for r in rides])) / given.usage.total_seconds,
    }


def _table(rows: dict[str, dict[str, float]]) -> str:
    figures = ("moves", "near misses", "reclaims", "elapsed")
    savings = ("below the request, %", "below the best fixed type, %")
    columns = ["rightsizing", "theirs, USD", "their saving, %", "ours, USD", "by the second", *savings, *figures]
    cells = []
    for name, f in rows.items():
        theirs = THEIRS.get(name)
        told = ["-", "-"] if theirs is None else [f"{theirs:.2f}", percent(1 - theirs / THEIRS["on-demand, off"])]
        counts = [f"{f[k]:.1f}" for k in ("moves", "near_misses", "reclaims")]
        saved = [percent(f["saving_against_request"]), percent(f["saving_against_best_fixed"])]
        cells.append([name, *told, f"{f['usd']:.2f}", f"{f['usd_by_the_second']:.2f}", *saved, *counts, f"{f['elapsed']:.2f}"])
    return table(columns, cells)
