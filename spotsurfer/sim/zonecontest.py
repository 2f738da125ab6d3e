"""Placement policies against each other on one market of several pools: every window is a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from spotsurfer.plugins import PLACEMENT, made
from spotsurfer.ports.placement import Placement
from spotsurfer.ports.purchase import Terms
from spotsurfer.sim.bills import billed_usd
from spotsurfer.sim.deadline import OPTIMUM, ticks_of
from spotsurfer.sim.match import HELD, Match, Step, need, part, spread
from spotsurfer.sim.outcome import Comparison, Outcome
from spotsurfer.sim.plots import Stripes
from spotsurfer.sim.zones import Journey, Watch, Zones, best_of_all, travel

BEST_SINGLE = "best-single-zone"  # Uniform Progress in the one pool that is the cheapest of all afterwards


@dataclass(frozen=True, slots=True)
class Setting:
    """What is played: windows begin at these rows; what was seen in `history` ticks before is known."""

    zones: Zones
    terms: Terms
    starts: Sequence[int]
    history: int


def compare(setting: Setting, names: Sequence[str], step: Step) -> Match:
    """All runs of all policies, in the same order. Raises UsageError, ConfigError."""
    need(setting.starts, ticks_of(setting.terms), len(setting.zones.up))
    watch = Watch(setting.zones.up, setting.terms.tick_seconds)
    outcomes, drawn = list[Outcome](), dict[str, Journey]()
    for i, name in enumerate(names):
        step(i * len(setting.starts), len(names) * len(setting.starts))
        if name == OPTIMUM:
            usd = np.array([best_of_all(setting.zones, setting.terms, s) for s in setting.starts])
            outcomes.append(Outcome(name, usd, np.array(setting.starts)))
            continue
        played = _played(name, setting, watch, part(step, i, len(setting.starts), len(names)))
        outcomes.append(_outcome(name, played, setting))
        drawn[name] = played[len(played) // 2]
    comparison = Comparison("A job with a deadline that may move between pools", _told(setting), outcomes)
    return Match(comparison, [spread(comparison), _timeline(drawn, setting)])


def placement(name: str, settings: dict[str, object] | None = None) -> Placement:
    """The policy of this name. Raises ConfigError with the names there are."""
    policy: Placement = made(PLACEMENT, name, settings or {})
    return policy


def _played(name: str, setting: Setting, watch: Watch, told: Callable[[int], None]) -> list[Journey]:
    if name == BEST_SINGLE:
        each = [_all(placement("single", {"pool": i}), setting, watch, told) for i in range(len(setting.zones.pools))]
        return min(each, key=lambda runs: sum(j.usd for j in runs))
    return _all(placement(name), setting, watch, told)


def _all(policy: Placement, setting: Setting, watch: Watch, told: Callable[[int], None]) -> list[Journey]:
    found = []
    for start in setting.starts:
        found.append(travel(policy, setting.zones, watch, setting.terms, start, setting.history))
        told(len(found))
    return found


def _outcome(name: str, runs: Sequence[Journey], setting: Setting) -> Outcome:
    tick = setting.terms.tick_seconds
    means = {
        "moves": np.array([float(sum(a.pool != b.pool for a, b in pairwise(j.machines))) for j in runs]),
        "launches": np.array([float(len(j.machines)) for j in runs]),
        "wasted_hours": np.array([j.wasted_hours for j in runs]),
        "aws_usd": np.array([billed_usd(j, setting.zones, tick, s) for j, s in zip(runs, setting.starts, strict=True)]),
    }
    missed = np.array([j.missed for j in runs], dtype=np.int64)
    return Outcome(name, np.array([j.usd for j in runs]), np.array(setting.starts), means, {"deadline_misses": missed})


def _told(setting: Setting) -> dict[str, object]:
    terms, zones = setting.terms, setting.zones
    return {
        "pools": len(zones.pools),
        "windows": len(setting.starts),
        "job_hours": terms.work_seconds / 3600,
        "deadline_hours": terms.deadline_seconds / 3600,
        "restart_hours": terms.restart_seconds / 3600,
        "tick_seconds": terms.tick_seconds,
        "move_usd": zones.move_usd,
        "history_hours": setting.history * terms.tick_seconds / 3600,
    }


def _timeline(drawn: dict[str, Journey], setting: Setting) -> Stripes:
    """The run in the middle of the list."""
    hours = setting.terms.tick_seconds / 3600
    rows = [(n, [(m.begin * hours, m.end * hours, HELD[m.buy]) for m in j.machines]) for n, j in drawn.items()]
    return Stripes(f"One run: from row {setting.starts[len(setting.starts) // 2]}", rows)
