"""E1: a job of 48 hours with a deadline on one spot pool, each pool judged by a policy that was not trained on it."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import numpy as np
from spotsurfer_lab.deadline_backtest import compare, policy_for
from spotsurfer_lab.markets import read_trace, read_windows
from spotsurfer_lab.results import figures

from bench.policies import fresh
from bench.report import Part, percent, table
from spotsurfer.core.scheduling.deadline_simulation import play, ticks_of
from spotsurfer.ports.policies import Buy, Terms, View

DATA = Path(__file__).resolve().parent.parent / "markets"
SETTINGS = [(hours, restart) for hours in (52, 60, 70, 92) for restart in (0.05, 0.2)]
POLICIES = ("surf", "uniform-progress", "greedy", "sliced", "skypilot", "on-demand", "optimum")
BASELINES = ("uniform-progress", "greedy")
Figures = dict[str, dict[str, float]]


def terms_of(setting: tuple[float, float], tick: float = 600.0) -> Terms:
    """Prices of the benchmark, USD an hour."""
    return Terms(tick, 48 * 3600, setting[0] * 3600, setting[1] * 3600, 0.9731, 3.06)


def run(every: int) -> Part:
    """All settings, two at a time."""
    began = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        jobs = [(setting, every) for setting in sorted(SETTINGS, reverse=True)]
        found = dict(zip(sorted(SETTINGS, reverse=True), pool.starmap(_setting, jobs, chunksize=1), strict=True))
        seconds = time.perf_counter() - began
        unseen = fresh.run(pool, every)
    results = [found[s] for s in SETTINGS]
    gaps = [f["surf"]["gap_to_optimum"] for f in results]
    best = [f["surf"]["mean_usd"] / min(f[b]["mean_usd"] for b in BASELINES) - 1 for f in results]
    one, many = _speed()
    keys = {
        "e1_mean_gap": float(np.mean(gaps)),
        "e1_worst_against_best_baseline": max(best),
        "e1_misses": int(sum(f["surf"]["deadline_misses"] for f in results)),
        "e1_runs": int(sum(f["surf"]["runs"] for f in results)),
        "e1_uniform_progress_gap": float(np.mean([f["uniform-progress"]["gap_to_optimum"] for f in results])),
        "e1_seconds": seconds,
        "decisions_per_second": one,
        "decisions_per_second_side_by_side": many,
    }
    return Part({**keys, **unseen.keys}, {"e1-gaps": _gaps(results), "e1-whole": _whole(results), **unseen.tables})


def _setting(setting: tuple[float, float], every: int) -> Figures:
    trace, starts = read_trace(DATA / "pools-2022.csv.gz"), read_windows(DATA / "pools-2022-windows.csv")[::every]
    match = compare(trace, starts, terms_of(setting), POLICIES, lambda *_: None)
    return figures(match.comparison)  # type: ignore[return-value]


def _gaps(results: list[Figures]) -> str:
    """Gap of the mean cost to the mean optimum, per cent."""
    names = [f"{h}/{r:g}" for h, r in SETTINGS]
    rows = []
    for policy in POLICIES[:-1]:
        gaps = [f[policy]["gap_to_optimum"] for f in results]
        rows.append([policy, *map(percent, gaps), percent(float(np.mean(gaps)))])
    best = [f["surf"]["mean_usd"] / min(f[b]["mean_usd"] for b in BASELINES) - 1 for f in results]
    rows.append(
        ["surf against the better of uniform-progress and greedy", *(percent(b, True) for b in best), percent(max(best), True)]
    )
    return table(["gap to the optimum, %", *names, "mean (last line: worst)"], rows)


def _whole(results: list[Figures]) -> str:
    columns = ["setting", "policy", "mean USD", "95 %", "p99 USD", "misses", "moves", "wasted h", "gap %", "95 %"]
    rows = []
    for (hours, restart), found in zip(SETTINGS, results, strict=True):
        for policy in POLICIES:
            f, i = found[policy], found[policy]["intervals_95"]
            usd, gap = (_interval(i[k], s) for k, s in (("mean_usd", 1), ("gap_to_optimum", 100)))  # type: ignore[index]
            told = [f"{f[k]:.1f}" if k in f else "-" for k in ("moves", "wasted_hours")]
            missed = str(f.get("deadline_misses", "-"))
            figures_ = [f"{f['mean_usd']:.2f}", usd, f"{f['p99_usd']:.1f}", missed, *told, percent(f["gap_to_optimum"]), gap]
            rows.append([f"{hours} h, {restart:g} h", policy, *figures_])
    return table(columns, rows)


def _interval(bounds: list[float], scale: float) -> str:
    return f"{scale * bounds[0]:.1f} to {scale * bounds[1]:.1f}"


def _speed() -> tuple[float, float]:
    """Decisions a second on one core: one job at a time, as production asks, and many at once, as back-tests do."""
    terms = terms_of((70, 0.2))
    up = np.random.default_rng(0).random((300, ticks_of(terms))) < 0.6
    policy, ticks = policy_for("surf", "", {}), ticks_of(terms)
    views = [
        View(terms, i * 600.0, i * 300.0, Buy.SPOT if up[0, i] else Buy.WAIT, 0.0, tuple(up[0, : i + 1].tolist()))
        for i in range(ticks)
    ]
    policy.choose(views[0])
    began = time.perf_counter()
    for view in views:
        policy.choose(view)
    one = len(views) / (time.perf_counter() - began)
    began = time.perf_counter()
    played = play(policy, terms, up)
    return one, float(played.held.size / (time.perf_counter() - began))
