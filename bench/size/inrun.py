"""E4: sizes within a run, without and with an earlier run of the same step."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Callable, Sequence

import numpy as np
from spotsurfer_lab.size_backtest import Ride, Rides, best_fixed, compare, optimum, play, size_policy

from bench.report import Part, percent, table
from bench.size.settings import MEGAHIT, MINIMAP2, surf, with_history, world
from spotsurfer.core.scheduling.rightsizing import Usage

Setting = tuple[str, float, float]
FIRST: dict[str, Setting] = {
    "first_24h_60s": (MEGAHIT, 24, 60),
    "first_24h_180s": (MEGAHIT, 24, 180),
    "first_24h_15s": (MEGAHIT, 24, 15),
    "minimap2_first": (MINIMAP2, 24, 60),
}
HARM: Setting = (MEGAHIT, 5, 180)
OTHERS: Sequence[Setting] = ((MEGAHIT, 72, 180), (MINIMAP2, 24, 180), (MINIMAP2, 5, 180))
HISTORY: dict[str, Setting] = {"history_24h_60s": (MEGAHIT, 24, 60), "history_24h_180s": (MEGAHIT, 24, 180)}
MORE_HISTORY: Sequence[Setting] = (HARM, (MINIMAP2, 24, 60))
COPIES = tuple(itertools.product((0.85, 1.0, 1.15), (0.9, 1.0, 1.1)))  # of time, of memory
UNEVEN = (0, 1)  # seeds of earlier runs whose pace and memory differ from stretch to stretch
OTHER = "other"  # the earlier run was of another program
STRETCHES = 24
POLICIES = ("surf", "threshold", "best-fixed", "optimum")
CORES_TOO = {"cpu_upper": 90.0, "cpu_lower": 40.0}
NAMES = {MEGAHIT: "MEGAHIT", MINIMAP2: "minimap2"}


def run_first() -> Part:
    """First runs, all settings."""
    settings = [*FIRST.values(), HARM, *OTHERS]
    found = {s: _first(s) for s in settings}
    rides = [r.by_policy["surf"] for r in found.values()]
    keys: dict[str, object] = {key: saving(found[s], "surf") for key, s in FIRST.items()}
    keys |= {
        "harm_5h_180s": -saving(found[HARM], "surf"),
        "ooms": sum(r.ooms for r in rides),
        "near_misses": sum(r.near_misses for r in rides),
        "near_misses_first_24h_60s": found[FIRST["first_24h_60s"]].by_policy["surf"].near_misses,
        "elapsed_worst": max(r.by_policy["surf"].elapsed_seconds / r.run_seconds for r in found.values()),
    }
    return Part(keys, {"size-first": _first_table(found)})


def run_history() -> Part:
    """The same with one earlier run: nine that are faster or slower, smaller or larger, and some that are unevenly so."""
    settings = [*HISTORY.values(), *MORE_HISTORY]
    jobs: list[tuple[Setting, object]] = [(s, how) for s in settings for how in (*COPIES, *UNEVEN, OTHER)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = dict(zip(jobs, pool.starmap(_with_history, jobs, chunksize=1), strict=True))
    first = {s: 1 - play(surf(), world(*s)).usd / best_fixed(world(*s)).usd for s in settings}
    keys: dict[str, object] = {"history_worst_against_first": max((1 - x) / (1 - first[s]) - 1 for (s, _), x in found.items())}
    for key, s in HISTORY.items():
        copies = [found[s, c] for c in COPIES]
        keys |= {key: float(np.mean(copies)), f"{key}_worst": min(copies)}
        keys[f"{key}_uneven"] = float(np.mean([found[s, c] for c in UNEVEN]))
    told = ["first run", "nine copies", "from, to", "uneven", "of another program", "optimum"]
    return Part(
        keys, {"size-history": table(["below the best fixed type, %", *told], [_row(s, first[s], found) for s in settings])}
    )


def _row(setting: Setting, first: float, found: dict[tuple[Setting, object], float]) -> list[str]:
    copies = [found[setting, c] for c in COPIES]
    spread = f"{percent(min(copies))} to {percent(max(copies))}"
    means = (first, float(np.mean(copies)), float(np.mean([found[setting, c] for c in UNEVEN])), found[setting, OTHER])
    given = world(*setting)
    cells = [percent(x) for x in (*means, 1 - optimum(given).usd / best_fixed(given).usd)]
    return [_name(setting), *cells[:2], spread, *cells[2:]]


def saving(rides: Rides, policy: str) -> float:
    """Against the best fixed type."""
    return 1 - rides.by_policy[policy].usd / rides.fixed_usd


def uneven(usage: Usage, seed: int) -> Usage:
    """Pace within 15 % and memory within 10 %, drawn for each of 24 stretches of the run."""
    rng = np.random.default_rng(seed)
    at, knots = np.linspace(0, STRETCHES - 1, len(usage.seconds)), np.arange(STRETCHES)
    time = np.interp(at, knots, rng.uniform(0.85, 1.15, STRETCHES))
    memory = np.interp(at, knots, rng.uniform(0.9, 1.1, STRETCHES))
    return Usage(usage.seconds * time, usage.memory_bytes * memory, usage.cores)


def _with_history(setting: Setting, how: object) -> float:
    given = world(*setting)
    if how == OTHER:
        earlier = world(MINIMAP2 if setting[0] == MEGAHIT else MEGAHIT, *setting[1:]).usage
    else:
        earlier = given.usage.times(*how) if isinstance(how, tuple) else uneven(given.usage, int(str(how)))
    return 1 - play(surf(), with_history(given, earlier)).usd / best_fixed(given).usd


def _first(setting: Setting) -> Rides:
    given = world(*setting)
    rides = compare(given, POLICIES, lambda *_: None)
    plain = {
        "surf, any time": play(size_policy("surf", {"stretch": True}), given),
        "threshold, cores too": play(size_policy("threshold", CORES_TOO), given),
    }
    return Rides({**rides.by_policy, **plain}, rides.fixed_usd, rides.run_seconds)


def _name(setting: Setting) -> str:
    return f"{NAMES[setting[0]]}, {setting[1]:g} h, {setting[2]:g} s"


def _first_table(found: dict[Setting, Rides]) -> str:
    told: dict[str, Callable[[Rides, Ride], str]] = {
        "USD": lambda _, ride: f"{ride.usd:.2f}",
        "below the best fixed type, %": lambda rides, ride: percent(1 - ride.usd / rides.fixed_usd),
        "moves": lambda _, ride: str(ride.moves),
        "near misses": lambda _, ride: str(ride.near_misses),
        "killed": lambda _, ride: str(ride.ooms),
        "elapsed": lambda rides, ride: f"{ride.elapsed_seconds / rides.run_seconds:.2f}",
    }
    rows = [
        [_name(s), policy, *(tell(rides, ride) for tell in told.values())]
        for s, rides in found.items()
        for policy, ride in rides.by_policy.items()
    ]
    return table(["run, move", "policy", *told], rows)
