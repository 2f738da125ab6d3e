"""Simulates checkpoint interval policies on machines that are lost at recorded ages, and compares them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spotsurfer.common.charts import Lines, Series
from spotsurfer.common.plugins import INTERVAL, made
from spotsurfer.core.checkpoints.hazard import Costs, Floats, SavePlan, Survival, plan
from spotsurfer.model.errors import InputMissing
from spotsurfer.model.lifetimes import Lives
from spotsurfer.ports.policies import Interval, SaveView
from spotsurfer_lab.markets import read_rows
from spotsurfer_lab.results import OPTIMUM, Comparison, Match, Outcome, Step, part, spread

# ---- Simulation: one fleet for each seed runs jobs in sequence, each on a new machine.
# A policy begins with only its prior, knows the fate of earlier machines, and learns as it goes. Each loss costs a restart and
# the work since the last save; a loss with a long enough notice costs the final save instead. All policies meet the same
# lives. The reference knows the hazard behind them.

EDGES = tuple(h * 3600.0 for h in (0, 0.25, 0.5, 1, 2, 4, 8, 16, 22))
CAP_SHARE, CAP_SECONDS = 0.2, 3600.0  # this share of losses this close to the greatest age makes a cap
REFERENCE_STEPS = 480
LEAST_WORK = 1.0  # seconds
FINAL_SAFETY = 1.25  # a notice must be at least this many times as long as the final save


@dataclass(frozen=True, slots=True)
class Recorded:
    """Lives of machines, in seconds, and whether each was lost (else it was given back: right-censored)."""

    seconds: Floats
    lost: np.ndarray


def read_lifetimes(path: Path) -> Recorded:
    """A CSV file, also with gzip: `lifetime_s`, `end` ("preempted", else censored). Raises InputMissing."""
    rows = read_rows(path)
    header = rows[0] if rows else []
    if "lifetime_s" not in header or "end" not in header:
        raise InputMissing(f"{path}: there is no column lifetime_s, or none end (preempted, or anything else).")
    at, end = header.index("lifetime_s"), header.index("end")
    try:
        seconds = np.array([float(row[at]) for row in rows[1:]])
        lost = np.array([row[end] == "preempted" for row in rows[1:]], dtype=np.bool_)
    except (ValueError, IndexError):
        raise InputMissing(f"{path}: a lifetime is no number of seconds.") from None
    if not lost.any() or not np.isfinite(seconds).all() or (seconds < 0).any():
        raise InputMissing(f"{path}: no machine was lost, or a lifetime is below 0.")
    return Recorded(seconds, lost)


def hazard(recorded: Recorded) -> Survival:
    """Piecewise constant: losses by time at risk. A cap if many losses came at nearly the same great age."""
    seconds, lost = recorded.seconds, recorded.lost
    greatest = float(np.quantile(seconds[lost], 0.995))
    at_cap = lost & (seconds > greatest - CAP_SECONDS)
    cap = float(np.median(seconds[at_cap])) if at_cap.sum() > max(CAP_SHARE * lost.sum(), 20) else float("inf")
    until = min(cap, greatest + 1) if np.isfinite(cap) else greatest + 1
    edges = [e for e in EDGES if e < until - CAP_SECONDS]
    rates = []
    for low, high in zip(edges, [*edges[1:], until - (CAP_SECONDS if np.isfinite(cap) else 0.0)], strict=True):
        risk = float(np.clip(seconds - low, 0, high - low).sum())
        ends = int((lost & (seconds >= low) & (seconds < high)).sum())
        rates.append((ends + 0.5) / max(risk, 1.0))
    return Survival(tuple(edges), tuple(rates), cap)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The simulated machines and jobs. Durations in seconds. `recall`: the share of losses with a notice."""

    truth: Survival
    job_seconds: float
    save_seconds: float
    restart_seconds: float
    notice_seconds: float
    recall: float = 1.0
    jobs: int = 200
    band: int | None = None

    @property
    def fits(self) -> bool:
        """Whether a notice leaves time for a final save with a margin."""
        return self.notice_seconds > 0 and self.save_seconds * FINAL_SAFETY <= self.notice_seconds


def lives(truth: Survival, seed: int) -> Iterator[tuple[float, float]]:
    """Endless lives, each with a number from 0 to 1 that decides whether a notice comes."""
    rng = np.random.default_rng(seed)
    ages = np.unique(np.concatenate([np.linspace(0, 48 * 3600, 4000), np.array(truth.edges)]))
    chance = truth.chance(ages)
    while True:
        for u, v in rng.random((256, 2)):
            k = int(np.searchsorted(-chance, -u))
            if k >= len(ages):
                last = truth.hazards[-1]
                yield float(ages[-1] - np.log(u / chance[-1]) / last), float(v)
            elif k == 0:
                yield 0.0, float(v)
            else:
                high, low = np.log(max(chance[k - 1], 1e-12)), np.log(max(chance[k], 1e-12))
                part = (high - np.log(u)) / (high - low) if high > low else 1.0
                yield min(float(ages[k - 1] + part * (ages[k] - ages[k - 1])), truth.cap_seconds), float(v)


@dataclass(frozen=True, slots=True)
class Run:
    """One job: its overhead as a share of its work, saves made, losses met."""

    overhead: float
    saves: int
    losses: int


@dataclass(slots=True)
class _Known:
    lives: Lives
    noticed: int = 0
    unnoticed: int = 0


def play(policy: Interval, fleet: Fleet, seed: int) -> list[Run]:
    """The jobs of one fleet, in order."""
    known = _Known(Lives())
    return [_job(policy, fleet, lives(fleet.truth, seed * 100_003 + n), known) for n in range(fleet.jobs)]


def _job(policy: Interval, fleet: Fleet, machines: Iterator[tuple[float, float]], known: _Known) -> Run:
    left, spent, saves, losses = fleet.job_seconds, 0.0, 0, 0
    while left > LEAST_WORK:
        life, chance = next(machines)
        age = 0.0
        while left > LEAST_WORK:
            after = policy.save_after(_view(fleet, known, age, left))
            work = left if after is None else min(max(after, LEAST_WORK), left)
            leg = work + (fleet.save_seconds if work < left else 0.0)
            if age + leg < life:
                age, left, spent, saves = age + leg, left - work, spent + leg, saves + (work < left)
                continue
            told = fleet.fits and chance < fleet.recall
            done = min(life - age, work)
            left -= done if told else 0.0
            spent += life - age + fleet.restart_seconds + (fleet.save_seconds if told else 0.0)
            losses, age = losses + 1, life
            known.noticed, known.unnoticed = known.noticed + told, known.unnoticed + (not told)
            break
        known.lives = known.lives.plus(age, age >= life)
    return Run(spent / fleet.job_seconds - 1, saves, losses)


def _view(fleet: Fleet, known: _Known, age: float, left: float) -> SaveView:
    cap = fleet.truth.cap_seconds
    return SaveView(
        age_seconds=age,
        save_seconds=fleet.save_seconds,
        restart_seconds=fleet.restart_seconds,
        final_seconds=fleet.save_seconds,
        notice_seconds=fleet.notice_seconds,
        lives=known.lives,
        noticed=known.noticed,
        unnoticed=known.unnoticed,
        band=fleet.band,
        cap_seconds=cap if np.isfinite(cap) else None,
        left_seconds=left,
    )


class Knows:
    """The reference: the dynamic program with the true hazard and recall."""

    def __init__(self, fleet: Fleet) -> None:
        """Solves the program once."""
        costs = Costs(fleet.save_seconds, fleet.restart_seconds, fleet.recall if fleet.fits else 0.0)
        self._plan: SavePlan = plan(fleet.truth, costs, fleet.job_seconds, REFERENCE_STEPS)

    def save_after(self, view: SaveView) -> float | None:
        """Seconds of work until the next save, by the plan."""
        left = view.left_seconds or 0.0
        after = self._plan.after(left, view.age_seconds)
        return None if after >= left - LEAST_WORK else after

    def expected_overhead(self, job_seconds: float) -> float:
        """The expected overhead as a share of the work."""
        return self._plan.expected_seconds(job_seconds) / job_seconds - 1


def overheads(runs: Sequence[Run]) -> Floats:
    """Overheads, one value for each job."""
    return np.array([r.overhead for r in runs])


# ---- Comparison: all policies meet the same machines, and every job is a run.

WINDOW = 20  # jobs in each mean of the learning plot


def compare(fleet: Fleet, fleets: int, names: Sequence[str], step: Step) -> Match:
    """Play so many fleets, each of which learns only from its own machines. Raises ConfigError."""
    reference = _play(OPTIMUM, fleet, fleets, lambda _: None)
    played: dict[str, list[Run]] = {}
    for i, name in enumerate(names):
        told = part(step, i, fleets, len(names))
        told(0)
        played[name] = reference if name == OPTIMUM else _play(name, fleet, fleets, told)
    outcomes = [_outcome(name, runs, reference, fleet) for name, runs in played.items()]
    comparison = Comparison("Jobs on machines that are lost", _told(fleet, fleets), outcomes, unit="hours")
    return Match(comparison, [_learning(played, fleet), spread(comparison)])


def _play(name: str, fleet: Fleet, fleets: int, told: Callable[[int], None]) -> list[Run]:
    policy: Interval = Knows(fleet) if name == OPTIMUM else made(INTERVAL, name, {})
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
    """Overhead by number of the job in its fleet: learning shows as a slope."""
    series = []
    for name, runs in played.items():
        by_job: Floats = overheads(runs).reshape(-1, fleet.jobs).mean(axis=0)
        width = min(WINDOW, fleet.jobs)
        smooth = np.convolve(by_job, np.ones(width) / width, mode="valid")
        series.append(Series(name, [(float(i + width / 2), float(100 * x)) for i, x in enumerate(smooth)]))
    return Lines("Learning", "job of the fleet", "overhead, points", series)
