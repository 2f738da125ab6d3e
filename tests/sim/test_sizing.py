"""Runs on machines of changing size: by hand, against all possible plans, and what history is worth."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from spotsurfer_lab.markets import read_usage
from spotsurfer_lab.placement_backtest import machines_usd
from spotsurfer_lab.size_backtest import SpotTimes, Stay, World, best_fixed, compare, optimum, play, size_policy

from spotsurfer.core.scheduling.rightsizing import Usage
from spotsurfer.model.errors import ConfigError, InputMissing, UsageError
from spotsurfer.ports.policies import Came, Earlier, MachineKind, SizeChoice, SizeMoment, SizeTerms

GIB = float(1 << 30)
SMALL, LARGE = MachineKind("m.1", "m", 2, int(10 * GIB), 1.0), MachineKind("m.2", "m", 4, int(40 * GIB), 2.0)
TERMS = SizeTerms((SMALL, LARGE), 1, 60.0)


class Plan:
    """Goes where it is told, look by look, and keeps what it saw."""

    def __init__(self, *to: int | None) -> None:
        self._to, self.seen = to, list[SizeMoment]()

    def begin(self, terms: SizeTerms) -> tuple[int, int]:
        return 0, terms.start

    def look(self, memory: int, moment: SizeMoment) -> tuple[int, SizeChoice]:
        self.seen.append(moment)
        return memory + 1, SizeChoice(self._to[memory] if memory < len(self._to) else None)


def usage(*pieces: tuple[float, float, float]) -> Usage:
    """Seconds, GiB, cores."""
    s, m, c = np.array(pieces).T
    return Usage(s, m * GIB, c)


def test_a_run_reckoned_by_hand() -> None:
    """Ten minutes; down after one, where 4 cores on 2 take twice as long; up again by the guard."""
    load = usage((360, 5, 4), (240, 20, 4))
    policy = Plan(0)
    ride = play(policy, World(load, TERMS))
    # 60 s large, 60 s move, 300 s of work on half the cores = 600 s small, 60 s move, 240 s large
    assert ride.elapsed_seconds == pytest.approx(60 + 60 + 600 + 60 + 240)
    assert ride.usd == pytest.approx((2 * (60 + 60) + 1 * (60 + 600 + 60) + 2 * (60 + 240)) / 3600)
    assert (ride.moves, ride.near_misses, ride.ooms) == (2, 1, 0)
    came = [m.came for m in policy.seen]
    assert came[:3] == [Came.STAYED, Came.PLANNED, Came.STAYED]
    assert came.count(Came.FORCED) == 1
    assert max(m.cores for m in policy.seen if m.here == 0) == pytest.approx(2.0)  # the wish for more is hidden


def test_without_the_guard_a_job_is_killed_and_begins_at_its_last_image() -> None:
    load = usage((360, 5, 4), (240, 20, 4))
    ride = play(Plan(0), World(load, TERMS, guard=False))
    assert (ride.near_misses, ride.ooms) == (0, 1)
    assert ride.elapsed_seconds == pytest.approx(60 + 60 + 600 + 60 + 300 + 240)


def test_a_reclaim_waits_and_may_change_the_size() -> None:
    load = usage((600, 5, 1))
    up = np.array([True, False, False, *[True] * 20])
    ride = play(Plan(None, 0), World(load, TERMS, spot=SpotTimes(100.0, up)))
    assert ride.reclaims == 1
    assert ride.elapsed_seconds == pytest.approx(600 + 200 + 60)
    assert ride.usd == pytest.approx((2 * 100 + 1 * (60 + 500)) / 3600)
    assert ride.moves == 0
    assert machines_usd(ride, TERMS.kinds) == pytest.approx(1 * (60 + 500) / 3600, abs=1e-6)  # taken in its first hour: free


def test_the_optimum_is_that_of_all_plans() -> None:
    rng = np.random.default_rng(4)
    for _ in range(20):
        load = Usage(rng.uniform(30, 900, 5), rng.uniform(1, 20, 5) * GIB, rng.uniform(0.5, 4, 5))
        world = World(load, TERMS)
        best = min(filter(None, (_cost(load, plan) for plan in itertools.product((0, 1), repeat=5))))
        assert optimum(world).usd == pytest.approx(best)
        assert optimum(world).usd <= play(size_policy("surf", {}), world).usd + 1e-12
        assert optimum(world).usd <= best_fixed(world).usd + 1e-12


def test_what_was_held_and_used_is_told_of_each_ride() -> None:
    world = World(periodic(), TERMS)
    for ride in (play(size_policy("surf", {}), world), optimum(world), best_fixed(world)):
        paid = sum(world.terms.kinds[h.kind].usd_per_hour * (h.end - h.begin) for h in ride.held) / 3600
        assert paid == pytest.approx(ride.usd)
        assert ride.held[-1].end == pytest.approx(ride.elapsed_seconds)
        assert max(memory for _, memory, _ in ride.used) == world.usage.memory_bytes.max()
        assert [at for at, _, _ in ride.used] == sorted(at for at, _, _ in ride.used)


def _cost(load: Usage, plan: tuple[int, ...]) -> float | None:
    usd, kinds = 0.0, TERMS.kinds
    for i, k in enumerate(plan):
        if load.memory_bytes[i] > kinds[k].usable_bytes:
            return None
        usd += load.seconds[i] * kinds[k].usd_per_hour * max(1.0, load.cores[i] / kinds[k].cores)
        usd += 60 * 3.0 if i and plan[i - 1] != k else 0.0
    return usd / 3600


def periodic() -> Usage:
    """Half an hour low, a quarter of an hour high, for fifteen hours; the cores change as well."""
    at = np.arange(0, 15 * 3600, 20.0)
    high = at % 2700 >= 1800
    return Usage(
        np.full(len(at), 20.0), np.where(high, 30.0, 4.0) * GIB * (1 + 0.02 * np.sin(at / 300)), np.where(high, 4.0, 1.0)
    )


def test_an_earlier_run_is_worth_something_and_a_wrong_one_costs_nearly_nothing() -> None:
    load = periodic()
    world = World(load, replace(TERMS, move_seconds=120.0))
    policy = size_policy("surf", {})

    def after(earlier: Usage) -> float:
        return play(policy, replace(world, terms=replace(world.terms, earlier=(earlier.kept(),)))).usd

    first, best = play(policy, world).usd, optimum(world).usd
    assert after(load.times(1.1, 0.93)) - best < 0.4 * (first - best)
    backwards = Usage(load.seconds, load.memory_bytes[::-1] * 1.7, load.cores)
    assert after(backwards) <= 1.02 * first
    assert after(usage((60, 0.1, 0.1))) <= 1.02 * first


def test_a_job_that_just_fits_is_not_left_on_the_type_of_twice_the_price() -> None:
    small = usage((36000, 0.985 * SMALL.usable_bytes / GIB, 2))
    ride = play(size_policy("surf", {}), World(small, TERMS))
    assert ride.near_misses == 0
    assert ride.moves <= 9, "it wants all there is, and looks now and then whether it wants more, less and less often"
    assert ride.usd < 1.1 * best_fixed(World(small, TERMS)).usd


def test_who_pays_for_time_is_not_stretched() -> None:
    world = World(periodic(), replace(TERMS, threads=4))
    plain = play(size_policy("surf", {"stretch": 1.02}), world)
    moving = plain.moves * TERMS.move_seconds
    assert plain.elapsed_seconds - moving <= 1.01 * world.usage.total_seconds
    assert plain.moves > 0


def test_thresholds_keep_their_bounds() -> None:
    ladder = (*(MachineKind(f"r.{n}", "r", n, int(8 * n * GIB), 0.1 * n) for n in (1, 2, 4, 8, 16)), SMALL)
    load = usage((7200, 1, 1))
    world = World(load, SizeTerms(ladder, 3, 10.0))

    def ends(**settings: float) -> int:
        return play(size_policy("threshold", settings), world).held[-1].kind

    assert ends(mem_lower=20) == 0
    assert ends(mem_lower=20, floor_gib=16) == 1
    assert ends(mem_lower=20, cool_down_seconds=8000) == 2
    assert play(size_policy("threshold", {"mem_lower": 20, "step": 2}), world).moves == 2
    full = World(usage((7200, 62, 1)), SizeTerms(ladder, 3, 10.0))
    assert play(size_policy("threshold", {"mem_upper": 80.0}), full).near_misses == 1  # 62 of 64 GiB is the guard's business
    assert play(size_policy("threshold", {"mem_upper": 80.0}), World(usage((7200, 56, 1)), full.terms)).moves == 1
    assert (
        play(
            size_policy("threshold", {"mem_upper": 80.0, "max_memory_factor": 1}), World(usage((7200, 56, 1)), full.terms)
        ).moves
        == 0
    )


@pytest.mark.parametrize(
    ("name", "given"),
    [
        *(
            ("threshold", g)
            for g in ({"mem_uper": 1}, {"step": 0.5}, {"mem_lower": 95}, {"mem_upper": -1}, {"mem_upper": "90"})
        ),
        ("surf", {"stretch": 0.9}),
        ("surf", {"stretch": "much"}),
        ("surf", {"strech": True}),
        ("nobody", {}),
    ],
)
def test_settings_that_mean_nothing_are_refused(name: str, given: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        size_policy(name, given)


def test_a_run_that_fits_nowhere_is_refused() -> None:
    with pytest.raises(UsageError, match="fits none"):
        compare(World(usage((60, 50, 1)), TERMS), ["surf"], lambda *_: None)


def test_looking_changes_nothing() -> None:
    """Pure by contract: the same memory and moment give the same answer, however often."""
    policy = size_policy("surf", {})
    for earlier in ((), (periodic().kept(),)):
        memory, start = policy.begin(replace(TERMS, earlier=earlier))
        moment = SizeMoment(start, 60.0, 3 * GIB, 3 * GIB, 1.0)
        for _ in range(5):
            (one, a), (_, b) = policy.look(memory, moment), policy.look(memory, moment)
            assert a == b
            memory = one


def test_stay_stays() -> None:
    ride = play(Stay(), World(usage((7200, 1, 1)), TERMS))
    assert (ride.moves, ride.usd) == (0, pytest.approx(4.0))


def test_an_earlier_run_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="earlier run"):
        Earlier((), (), ())


def test_what_is_kept_of_a_run_has_its_length_and_peak() -> None:
    load = periodic()
    kept = load.kept()
    assert len(kept.seconds) == 600
    assert sum(kept.seconds) == pytest.approx(load.total_seconds)
    assert max(kept.memory_bytes) == load.memory_bytes.max()
    assert np.dot(kept.seconds, kept.cores) == pytest.approx(np.dot(load.seconds, load.cores))


HEAD = "t_s,rss_mib,cpu_cores\n"
BAD = ("0,1,1", "0,1,1\n0,1,1", "0,1,1\n1,x,1", "0,1,1\n1,nan,1", "0,1,1\n1,-1,1", "0,0,1\n1,0,1", "0,1,1\n1")


@pytest.mark.parametrize("text", ["", "t_s,rss_mib\n0,1\n1,1\n", *(HEAD + lines for lines in BAD)])
def test_files_that_are_no_usage_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "u.csv").write_text(text)
    with pytest.raises(InputMissing, match=r"u\.csv"):
        read_usage(tmp_path / "u.csv")
