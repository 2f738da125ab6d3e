"""E2 and E3: a job that may move between nine zones, and when to save on machines with recorded lifetimes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from spotsurfer_lab import interval_backtest, placement_backtest
from spotsurfer_lab.interval_backtest import Fleet, hazard, read_lifetimes
from spotsurfer_lab.markets import FAMILIES, read_prices, read_trace, read_windows
from spotsurfer_lab.placement_backtest import Zones
from spotsurfer_lab.results import OPTIMUM, figures

from bench.report import Part, percent, table
from spotsurfer.core.scheduling.deadline_simulation import ticks_of
from spotsurfer.ports.policies import Terms

DATA = Path(__file__).resolve().parent.parent / "markets"
TICK_SECONDS, ON_DEMAND, SPOT, USD_PER_GB = 195.0, 3.06, 0.9731, 0.02
SEEN_HOURS = 24.0
POLICIES = ("surf", "greedy-history", "history", "first-free", "cheapest-free", "best-single-zone", OPTIMUM)
JOBS = ((48, 52, 0.05), (48, 52, 0.2), (48, 70, 0.05), (48, 70, 0.2), (24, 36, 0.2))  # work, deadline, restart; hours
PRICED_JOBS = ((48, 52, 0.2), (48, 70, 0.2), (24, 36, 0.05))
PRICES = ("prices-2020", "prices-2020-crossed")
STATE_GB = (1.0, 20.0, 200.0)
WINDOWS_EVERY = 6  # windows overlap, and a run of several zones takes seconds
FLEETS, FLEET_JOBS = 4, 150
SAVES, NOTICES, JOB_HOURS = (5.0, 30.0, 120.0, 300.0), (0.0, 30.0, 120.0), (4.0, 8.0, 20.0)


@dataclass(frozen=True, slots=True)
class Place:
    """One setting of E2. `half` of the recorded windows: 0 = the first, 1 = the second, held out; None = a made-up market."""

    market: str
    state_gb: float
    job: tuple[float, float, float]
    half: int | None
    every: int


@dataclass(frozen=True, slots=True)
class Save:
    """One setting of E3."""

    save_seconds: float
    notice_seconds: float
    job_hours: float
    fleets: int
    jobs: int


def place(one: Place) -> dict[str, Any]:
    """The figures of one setting."""
    zones, starts = _market(one)
    work, deadline, restart = one.job
    terms = Terms(TICK_SECONDS, work * 3600, deadline * 3600, restart * 3600, 0.0, ON_DEMAND)
    rows = [r for r in starts if r + ticks_of(terms) <= len(zones.up)][:: one.every]
    setting = placement_backtest.Setting(zones, terms, rows, round(SEEN_HOURS * 3600 / TICK_SECONDS))
    found = figures(placement_backtest.compare(setting, POLICIES, _quiet).comparison)
    about = {"market": one.market, "state_gb": one.state_gb, "job": one.job, "half": one.half, "windows": len(rows)}
    return {**about, "policies": found}


def _market(one: Place) -> tuple[Zones, list[int]]:
    trace = read_trace(DATA / "zones-2023.csv.gz")
    n, move = len(trace.pools), one.state_gb * USD_PER_GB
    if one.half is None:
        up = FAMILIES[one.market](len(trace.up), n, TICK_SECONDS, 7)
        starts = list(range(443, len(up), 443))
    else:
        up = trace.up
        starts = sorted(s - trace.first for s in read_windows(DATA / "zones-2023-windows.csv"))
        starts = [s for s in starts if (s >= len(up) // 2) == bool(one.half)]
    usd = read_prices(DATA / f"{one.market}.csv.gz", trace) if one.market in PRICES else np.full(up.shape, SPOT)
    return Zones(trace.pools, up, usd, np.full(n, ON_DEMAND), move), starts


def save(one: Save) -> dict[str, Any]:
    """The figures of one setting."""
    truth = hazard(read_lifetimes(DATA / "gcp-lifetimes-2019.csv.gz"))
    fleet = Fleet(truth, one.job_hours * 3600, one.save_seconds, 2 * one.save_seconds, one.notice_seconds, 1.0, one.jobs)
    names = ("surf", "young", "daly", "fixed", "never", OPTIMUM)
    found = figures(interval_backtest.compare(fleet, one.fleets, names, _quiet).comparison)
    about = {"save_seconds": one.save_seconds, "notice_seconds": one.notice_seconds, "job_hours": one.job_hours}
    return {**about, "fits": fleet.fits, "policies": found}


def _quiet(done: int, total: int) -> None:
    del done, total


def places(every: int) -> Iterator[Place]:
    """E2: equal prices, prices of 2020, and made-up markets."""
    for half in (0, 1):
        yield from (Place("equal", 0.0, job, half, every) for job in JOBS)
        yield from (Place(m, gb, job, half, every) for m in PRICES for gb in STATE_GB for job in PRICED_JOBS)
    yield from (Place(family, 20.0, job, None, every) for family in FAMILIES for job in PRICED_JOBS)


def saves(fleets: int, jobs: int) -> Iterator[Save]:
    """E3. A notice too short for a save is as none, and is not played twice."""
    for cost in SAVES:
        for notice in NOTICES:
            if notice == 0 or cost * 1.25 <= notice:
                yield from (Save(cost, notice, hours, fleets, jobs) for hours in JOB_HOURS)


def run_placement(every: int) -> Part:
    """E2: all settings, two at a time."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(place, list(places(WINDOWS_EVERY * every)), chunksize=1)
    equal, priced = [s for s in found if s["market"] == "equal"], [s for s in found if s["market"] in PRICES]
    keys = {"e2_equal_gap": _mean(equal), "e2_priced_gap": _mean(priced)}
    for half, name in enumerate(("tuned", "held_out")):
        keys[f"e2_equal_gap_{name}"] = _mean([s for s in equal if s["half"] == half])
        keys[f"e2_priced_gap_{name}"] = _mean([s for s in priced if s["half"] == half])
    keys["e2_misses"] = sum(int(s["policies"]["surf"]["deadline_misses"]) for s in found)
    rows = [[_name(s), *(percent(gap(s, p)) for p in POLICIES if p != OPTIMUM)] for s in found]
    columns = ["market, GB, work/deadline/restart h, half", *(p for p in POLICIES if p != OPTIMUM)]
    return Part(keys, {"e2-gaps": table(columns, rows)})


def run_interval(every: int) -> Part:
    """E3: all settings, two at a time."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(save, list(saves(max(FLEETS // every, 1), FLEET_JOBS)), chunksize=1)
    points = [float(s["policies"]["surf"]["points_over_optimum"]) for s in found]
    keys = {"e3_points_over_optimum": float(np.mean(points)), "e3_points_over_optimum_worst": max(points)}
    names = ("surf", "young", "daly", "fixed", "never")
    rows = [
        [
            f"{s['save_seconds']:.0f} s, {s['notice_seconds']:.0f} s, {s['job_hours']:.0f} h",
            f"{s['policies'][OPTIMUM]['overhead_points']:.2f}",
            *(f"{s['policies'][p]['points_over_optimum']:+.2f}" for p in names),
        ]
        for s in found
    ]
    return Part(keys, {"e3-points": table(["save, notice, job", "optimum", *names], rows)})


def gap(setting: dict[str, Any], policy: str = "surf") -> float:
    """Above the optimum, as a share."""
    return float(setting["policies"][policy]["gap_to_optimum"])


def _mean(settings: list[dict[str, Any]]) -> float:
    return float(np.mean([gap(s) for s in settings]))


def _name(setting: dict[str, Any]) -> str:
    half = {0: "tuned", 1: "held out", None: "made up"}[setting["half"]]
    job = "/".join(f"{x:g}" for x in setting["job"])
    return f"{setting['market']}, {setting['state_gb']:g}, {job}, {half} ({setting['windows']})"
