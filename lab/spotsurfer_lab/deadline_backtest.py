"""Compares purchase policies on one trace: every pool and window is a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from spotsurfer.common.charts import Stripes
from spotsurfer.common.plugins import PURCHASE, made, plugin
from spotsurfer.core.scheduling.deadline_simulation import Bools, Played, play, ticks_of
from spotsurfer.ports.policies import LEAVE_OUT, Purchase, Terms, parameters_of
from spotsurfer_lab.hindsight import OPTIMUM, optimum
from spotsurfer_lab.markets import Trace
from spotsurfer_lab.results import HELD, Comparison, Match, Outcome, Step, need, spread

Settings = Mapping[str, Mapping[str, object]]
NONE: Settings = {}


@dataclass(frozen=True, slots=True)
class _Part:
    """One policy on one pool."""

    policy: str
    usd: np.ndarray
    played: Played | None


def compare(
    trace: Trace, starts: Sequence[int], terms: Terms, names: Sequence[str], step: Step, settings: Settings = NONE
) -> Match:
    """All runs of all policies, in the same order; `settings` by policy. Raises UsageError, ConfigError."""
    ticks = ticks_of(terms)
    rows = trace.windows(list(starts), ticks)
    need(rows, ticks, len(trace.up))
    parts: dict[str, list[_Part]] = {name: [] for name in names}
    for i, pool in enumerate(trace.pools):
        up = np.array([trace.up[r : r + ticks, i] for r in rows])
        for j, name in enumerate(names):
            parts[name].append(_part(name, pool, terms, up, settings.get(name, {})))
            step((i * len(names) + j + 1) * len(rows), len(trace.pools) * len(names) * len(rows))
    outcomes = [_outcome(name, found, np.array(rows)) for name, found in parts.items()]
    told = {
        "pools": len(trace.pools),
        "windows": len(rows),
        "job_hours": terms.work_seconds / 3600,
        "deadline_hours": terms.deadline_seconds / 3600,
        "restart_hours": terms.restart_seconds / 3600,
        "tick_seconds": terms.tick_seconds,
        "on_demand": terms.on_demand_usd_per_hour,
        "spot": terms.spot_usd_per_hour,
    }
    comparison = Comparison("A job with a deadline on one pool", told, outcomes)
    return Match(comparison, [spread(comparison), _timeline(parts, trace, rows, terms)])


def policy_for(name: str, pool: str, settings: Mapping[str, object]) -> Purchase:
    """A policy that was not trained on this pool. Raises ConfigError with the names there are."""
    learns = any(p.name == LEAVE_OUT for p in parameters_of(plugin(PURCHASE, name)))
    out = [*as_list(settings.get(LEAVE_OUT, [])), pool]
    policy: Purchase = made(PURCHASE, name, {**settings, LEAVE_OUT: out} if learns else settings)
    return policy


def as_list(value: object) -> list[object]:
    """A list as it is, any other value as a list of one."""
    return list(value) if isinstance(value, list) else [value]


def _part(name: str, pool: str, terms: Terms, up: Bools, settings: Mapping[str, object]) -> _Part:
    if name == OPTIMUM:
        return _Part(name, optimum(terms, up), None)
    played = play(policy_for(name, pool, settings), terms, up)
    return _Part(name, played.usd, played)


def _outcome(name: str, parts: Sequence[_Part], rows: np.ndarray) -> Outcome:
    groups = np.tile(rows, len(parts))
    usd = np.concatenate([p.usd for p in parts])
    played = [p.played for p in parts if p.played is not None]
    if not played:
        return Outcome(name, usd, groups)
    means = {
        "moves": np.concatenate([p.moves for p in played]).astype(np.float64),
        "wasted_hours": np.concatenate([p.wasted_hours for p in played]),
    }
    missed = np.concatenate([p.missed for p in played]).astype(np.int64)
    return Outcome(name, usd, groups, means, {"deadline_misses": missed})


def _timeline(parts: dict[str, list[_Part]], trace: Trace, rows: Sequence[int], terms: Terms) -> Stripes:
    """The run in the middle of the list."""
    pool, run = len(trace.pools) // 2, len(rows) // 2
    hours, ticks = terms.tick_seconds / 3600, ticks_of(terms)
    free = trace.up[rows[run] : rows[run] + ticks, pool]
    drawn = [("spot to be had", _pieces(free.astype(np.int8), {1: "available"}, hours))]
    for name, found in parts.items():
        played = found[pool].played
        if played is not None:
            drawn.append((name, _pieces(played.held[run], {int(k): v for k, v in HELD.items()}, hours)))
    return Stripes(f"One run: {trace.pools[pool]}, from tick {rows[run] + trace.first}", drawn)


def _pieces(values: np.ndarray, kinds: dict[int, str], hours: float) -> list[tuple[float, float, str]]:
    """Stretches of equal values."""
    cuts = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    stretches = [(a, b) for a, b in pairwise(cuts) if int(values[a]) in kinds]
    return [(a * hours, b * hours, kinds[int(values[a])]) for a, b in stretches]
