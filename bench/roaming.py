"""`python -m bench.roaming`: placement on nine zones (E2), intervals on recorded lifetimes (E3), for `make bench-policies`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spotsurfer.ports.purchase import Terms
from spotsurfer.sim import savecontest, zonecontest
from spotsurfer.sim.deadline import OPTIMUM, ticks_of
from spotsurfer.sim.families import FAMILIES
from spotsurfer.sim.outcome import figures
from spotsurfer.sim.prices import read_prices
from spotsurfer.sim.saving import Fleet, hazard, read_lifetimes
from spotsurfer.sim.traces import read_trace, read_windows
from spotsurfer.sim.zones import Zones

DATA = Path(__file__).parent / "markets"
TICK_SECONDS, ON_DEMAND, SPOT, USD_PER_GB = 195.0, 3.06, 0.9731, 0.02
SEEN_HOURS = 24.0
POLICIES = ("surf", "greedy-history", "history", "first-free", "cheapest-free", "best-single-zone", OPTIMUM)
JOBS = ((48, 52, 0.05), (48, 52, 0.2), (48, 70, 0.05), (48, 70, 0.2), (24, 36, 0.2))  # work, deadline, restart; hours
PRICED_JOBS = ((48, 52, 0.2), (48, 70, 0.2), (24, 36, 0.05))
PRICES = ("prices-2020", "prices-2020-crossed")
STATE_GB = (1.0, 20.0, 200.0)
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
    setting = zonecontest.Setting(zones, terms, rows, round(SEEN_HOURS * 3600 / TICK_SECONDS))
    found = figures(zonecontest.compare(setting, POLICIES, _quiet).comparison)
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
    found = figures(savecontest.compare(fleet, one.fleets, names, _quiet).comparison)
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


def summary(e2: list[dict[str, Any]], e3: list[dict[str, Any]]) -> dict[str, float]:
    """The keys: mean gaps over settings (recorded markets, both halves), and the worst setting's points over the optimum."""
    keys: dict[str, float] = {}
    equal = [gap(s) for s in e2 if s["market"] == "equal"]
    priced = [gap(s) for s in e2 if s["market"] in PRICES]
    keys["e2_equal_gap"], keys["e2_priced_gap"] = float(np.mean(equal)), float(np.mean(priced))
    for half, name in ((0, "first_half"), (1, "held_out_half")):
        keys[f"e2_equal_gap_{name}"] = float(np.mean([gap(s) for s in e2 if s["market"] == "equal" and s["half"] == half]))
        keys[f"e2_priced_gap_{name}"] = float(np.mean([gap(s) for s in e2 if s["market"] in PRICES and s["half"] == half]))
    for policy in POLICIES:
        keys[f"e2_priced_gap_{policy}"] = float(np.mean([gap(s, policy) for s in e2 if s["market"] in PRICES]))
    points = [s["policies"]["surf"]["points_over_optimum"] for s in e3]
    keys["e3_points_over_optimum"], keys["e3_points_mean"] = float(max(points)), float(np.mean(points))
    return keys


def gap(setting: dict[str, Any], policy: str = "surf") -> float:
    """Above the optimum, as a share."""
    return float(setting["policies"][policy]["gap_to_optimum"])


def main() -> int:
    """Exit code 0: the targets are met."""
    parser = argparse.ArgumentParser(prog="python -m bench.roaming", description=__doc__)
    parser.add_argument("--every", type=int, default=3, help="each so-many-th window (default %(default)s)")
    parser.add_argument("--fleets", type=int, default=6, help="of jobs that learn (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=150, help="of each fleet (default %(default)s)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("build/bench/policies.json"))
    options = parser.parse_args()
    began = time.monotonic()
    with ProcessPoolExecutor(options.workers) as pool:
        e3 = _told(pool.map(save, saves(options.fleets, options.jobs)), "points_over_optimum")
        e2 = _told(pool.map(place, places(options.every)), "gap_to_optimum")
    keys = summary(e2, e3)
    _merge(options.out, {**keys, "e2": e2, "e3": e3, "roaming_seconds": round(time.monotonic() - began)})
    print(json.dumps(keys, indent=1))
    return int(keys["e2_equal_gap"] > 0.02 or keys["e2_priced_gap"] > 0.05 or keys["e3_points_over_optimum"] > 0.3)


def _told(results: Iterator[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    found = []
    for one in results:
        found.append(one)
        shown = {k: v for k, v in one.items() if k != "policies"}
        print(shown, {name: round(p[key], 4) for name, p in one["policies"].items()}, flush=True)
    return found


def _merge(path: Path, values: dict[str, Any]) -> None:
    before = json.loads(path.read_text()) if path.exists() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**before, **values}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
