"""The settings of the benchmark: recorded runs, stretched, on the types of three families."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from spotsurfer_lab.markets import read_rows, read_usage
from spotsurfer_lab.size_backtest import MAX_FACTOR, World, allowed, kinds_like, size_policy

from bench.report import ROOT
from spotsurfer.core.scheduling.rightsizing import Usage
from spotsurfer.ports.policies import Size, SizeTerms

DATA = ROOT / "bench" / "usage"
MARKETS = ROOT / "bench" / "markets"
CATALOG, TYPES, REQUEST = "aws-us-east-1", ("c6i.*", "m6i.*", "r6i.*"), "r6i.4xlarge"
PEAK_GIB, CORES = 60.0, 8.0
MEGAHIT, MINIMAP2 = "megahit", "minimap2_sort"


@cache
def recorded(run: str) -> Usage:
    """As it was measured."""
    return read_usage(DATA / f"{run}.csv.gz")


def world(run: str, hours: float, move_seconds: float) -> World:
    """The run at this length, begun on the type that its user asked for."""
    usage = recorded(run).scaled(hours, PEAK_GIB * 2**30, CORES)
    kinds, start = allowed(kinds_like(CATALOG, TYPES), REQUEST, MAX_FACTOR, MAX_FACTOR)
    return World(usage, SizeTerms(kinds, start, move_seconds, CORES))


def at_spot_prices(given: World) -> World:
    """On-demand less what spot saved on average in the region of the recorded market."""
    saved = {row[0]: int(row[1]) for row in read_rows(MARKETS / "advisor-us-west-2-2025.csv")[1:]}
    kinds = tuple(replace(k, usd_per_hour=k.usd_per_hour * (100 - saved[k.name]) / 100) for k in given.terms.kinds)
    return replace(given, terms=replace(given.terms, kinds=kinds))


def with_history(given: World, *earlier: Usage) -> World:
    """The same run after earlier ones."""
    return replace(given, terms=replace(given.terms, earlier=tuple(e.kept() for e in earlier)))


def surf() -> Size:
    """The policy that ships."""
    return size_policy("surf", {})
