"""Interval policies against each other on the same machines: every job is a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from spotsurfer.plugins import INTERVAL, made
from spotsurfer.ports.interval import Interval
from spotsurfer.sim.deadline import OPTIMUM
from spotsurfer.sim.match import Match, Step, part, spread
from spotsurfer.sim.outcome import Comparison, Floats, Outcome
from spotsurfer.sim.plots import Lines, Series
from spotsurfer.sim.saving import Fleet, Knows, Run, overheads, play

WINDOW = 20  # jobs that the plot of learning takes the mean of


def compare(fleet: Fleet, fleets: int, names: Sequence[str], step: Step) -> Match:
    """So many fleets, each of which learns from its own machines alone. Raises ConfigError."""
    reference = _play(OPTIMUM, fleet, fleets, lambda _: None)
    played: dict[str, list[Run]] = {}
    for i, name in enumerate(names):
        told = part(step, i, fleets, len(names))
        told(0)
        played[name] = reference if name == OPTIMUM else _play(name, fleet, fleets, told)
    outcomes = [_outcome(name, runs, reference, fleet) for name, runs in played.items()]
    comparison = Comparison("Jobs on machines that are lost", _told(fleet, fleets), outcomes, unit="hours")
    return Match(comparison, [_learning(played, fleet), spread(comparison)])


def interval(name: str) -> Interval:
    """The policy of this name. Raises ConfigError with the names there are."""
    policy: Interval = made(INTERVAL, name, {})
    return policy


def _play(name: str, fleet: Fleet, fleets: int, told: Callable[[int], None]) -> list[Run]:
    policy: Interval = Knows(fleet) if name == OPTIMUM else interval(name)
    runs: list[Run] = []
    for seed in range(fleets):
        runs += play(policy, fleet, seed)
        told(seed + 1)
    return runs


def _outcome(name: str, runs: Sequence[Run], reference: Sequence[Run], fleet: Fleet) -> Outcome:
    over = overheads(runs)
    hours = (1 + over) * fleet.job_seconds / 3600
    means = {
        "overhead_points": 100 * over,
        "points_over_optimum": 100 * (over - overheads(reference)),
        "saves": np.array([float(r.saves) for r in runs]),
        "losses": np.array([float(r.losses) for r in runs]),
    }
    return Outcome(name, hours, np.arange(len(runs)), means)


def _told(fleet: Fleet, fleets: int) -> dict[str, object]:
    return {
        "fleets": fleets,
        "jobs": fleet.jobs,
        "job_hours": fleet.job_seconds / 3600,
        "save_seconds": fleet.save_seconds,
        "restart_seconds": fleet.restart_seconds,
        "notice_seconds": fleet.notice_seconds,
        "recall": fleet.recall,
        "cap_hours": None if not np.isfinite(fleet.truth.cap_seconds) else round(fleet.truth.cap_seconds / 3600, 2),
    }


def _learning(played: dict[str, list[Run]], fleet: Fleet) -> Lines:
    """Overhead by number of the job in its fleet: what was learned shows as a slope."""
    series = []
    for name, runs in played.items():
        by_job: Floats = overheads(runs).reshape(-1, fleet.jobs).mean(axis=0)
        width = min(WINDOW, fleet.jobs)
        smooth = np.convolve(by_job, np.ones(width) / width, mode="valid")
        series.append(Series(name, [(float(i + width / 2), float(100 * x)) for i, x in enumerate(smooth)]))
    return Lines("Learning", "job of the fleet", "overhead, points", series)
