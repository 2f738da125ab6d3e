"""The pretended cloud's plot, as a pure function."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from spotsurfer_providers.local.box.scenario import (
    BoxFacts,
    Capacity,
    Outage,
    Price,
    Reclaim,
    Scenario,
    Trace,
    fate,
    full,
    load,
    price_factor,
    refusal,
)

from spotsurfer.model.errors import ConfigError
from spotsurfer.model.market import Market, Pool

A = Pool("local", "local", "local-a", "m6i.large")
B = Pool("local", "local", "local-b", "c6i.large")
SPOT, ON_DEMAND = Market.SPOT, Market.ON_DEMAND


def box(pool: Pool = A, at: float = 100.0, launch: int | None = 1, market: Market = SPOT) -> BoxFacts:
    return BoxFacts(pool, market, at, launch)


def test_the_empty_plot_does_nothing() -> None:
    assert price_factor(Scenario(), A, SPOT, 5) == 1
    assert refusal(Scenario(), A, SPOT, 5, []) is None
    assert fate(Scenario(), box(), 120) is None


def test_prices_change_for_a_while_and_multiply() -> None:
    plot = Scenario(prices=[Price(2, "local-a/*", SPOT, 10, 20), Price(1.5, "*", None)])
    assert [price_factor(plot, A, SPOT, at) for at in (9, 10, 19.9, 20)] == [1.5, 3, 3, 1.5]
    assert price_factor(plot, A, ON_DEMAND, 10) == 1.5
    assert price_factor(plot, B, SPOT, 10) == 1.5


def test_an_outage_by_the_clock() -> None:
    plot = Scenario(outages=[Outage("local-a/*", SPOT, 10, 20)])
    assert [refusal(plot, A, SPOT, at, []) is None for at in (9, 10, 19.9, 20)] == [True, False, False, True]
    assert refusal(plot, B, SPOT, 15, []) is None
    assert refusal(plot, A, ON_DEMAND, 15, []) is None


def test_an_outage_from_the_second_reclaim_on() -> None:
    plot = Scenario(outages=[Outage(at_reclaim=2, seconds=30)])
    assert refusal(plot, A, SPOT, 55, [50]) is None
    assert [refusal(plot, A, SPOT, at, [60, 50]) is None for at in (59, 60, 89, 90)] == [True, False, False, True]


def test_a_reclaim_of_the_nth_launch_at_an_age() -> None:
    plot = Scenario(reclaims=[Reclaim(after_seconds=60, launch=2, notice_seconds=30, rebalance_seconds_before=20)])
    assert fate(plot, box(launch=1), 120) is None
    found = fate(plot, box(launch=2), 120)
    assert found is not None
    assert (found.rebalance_seconds, found.notice_seconds, found.gone_seconds) == (140, 160, 190)


def test_a_reclaim_at_a_time_hits_what_lives_then() -> None:
    plot = Scenario(reclaims=[Reclaim(at_seconds=150, pool="local-a/*", notice_seconds=0)])
    found = fate(plot, box(at=100), 120)
    assert found is not None
    assert (found.notice_seconds, found.gone_seconds) == (150, 150)
    assert fate(plot, box(at=151), 120) is None
    assert fate(plot, box(pool=B), 120) is None
    assert fate(plot, box(market=ON_DEMAND, launch=None), 120) is None


def test_the_earliest_reclaim_counts_and_the_default_notice_holds() -> None:
    plot = Scenario(reclaims=[Reclaim(after_seconds=60), Reclaim(after_seconds=70, notice_seconds=0)])
    found = fate(plot, box(), 120)
    assert found is not None
    assert found.gone_seconds == 170
    assert fate(Scenario(reclaims=plot.reclaims[:1]), box(), 120) != found


def test_capacity_counts_what_lives() -> None:
    plot = Scenario(capacities=[Capacity(2, "local-a/*")])
    assert full(plot, A, SPOT, [(A, SPOT), (B, SPOT), (A, ON_DEMAND)]) is None
    assert full(plot, A, SPOT, [(A, SPOT), (A, SPOT)])
    assert full(plot, B, SPOT, [(A, SPOT), (A, SPOT)]) is None


def test_a_trace_refuses_and_takes() -> None:
    plot = Scenario(trace=Trace({"local-a/*": [True, True, False, True]}, 10))
    assert [refusal(plot, A, SPOT, at, []) is None for at in (5, 19, 20, 29, 30, 999)] == [True, True, False, False, True, True]
    assert refusal(plot, A, ON_DEMAND, 25, []) is None
    found = fate(plot, box(at=5), 7)
    assert found is not None
    assert (found.notice_seconds, found.gone_seconds) == (20, 27)
    assert fate(plot, box(at=31), 7) is None
    assert fate(plot, box(pool=B, at=5), 7) is None


def test_a_file_with_everything(tmp_path: Path) -> None:
    rows = "tick,x,y\n7,1,0\n8,1,1\n9,0,1\n"
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(rows.encode()))
    (tmp_path / "s.toml").write_text("""
[[price]]
factor = 1.5
[[outage]]
at_reclaim = 2
seconds = 90
market = "on-demand"
[[reclaim]]
after_seconds = 5
launch = 1
[[capacity]]
instances = 1
[trace]
path = "a.csv.gz"
seconds_per_tick = 2
start_tick = 8
[trace.columns]
x = "local-a/*"
""")
    plot = load(tmp_path / "s.toml")
    assert plot.prices == [Price(1.5)]
    assert plot.outages == [Outage(at_reclaim=2, seconds=90.0, market=ON_DEMAND)]
    assert plot.reclaims == [Reclaim(after_seconds=5.0, launch=1)]
    assert plot.capacities == [Capacity(1)]
    assert plot.trace == Trace({"local-a/*": [True, False]}, 2.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[reclaims]]\n", "unknown table 'reclaims'"),
        ("[[reclaim]]\nlaunch = 1\n", "either at_seconds or after_seconds"),
        ("[[reclaim]]\nafter_seconds = 1\nnotice = 2\n", "unknown key 'notice'"),
        ('[[price]]\nfactor = "2"\n', "price 1.factor is '2'; it must be a number"),
        ("[[price]]\nfrom_seconds = 2\n", "price 1 needs factor"),
        ('[[price]]\nfactor = 1\nmarket = "spott"\n', "'spot' or 'on-demand'"),
        ("[reclaim]\nafter_seconds = 1\n", "[[reclaim]], with two brackets"),
        ("[[reclaim]\n", "is not TOML"),
        ('[trace]\npath = "x"\n', "trace.columns"),
        ('[trace]\npath = "x"\n[trace.columns]\na = "*"\n', "x can't be read"),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "s.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as e:
        load(path)
    assert said in str(e.value)
    assert str(tmp_path) in str(e.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        load(tmp_path / "none.toml")
