"""Plots as values; `page` draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Series:
    """Points of one name, in order of x."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines, one a policy."""

    title: str
    x: str
    y: str
    series: Sequence[Series]


@dataclass(frozen=True, slots=True)
class Stripes:
    """One run's timeline: rows of (name, what was held from when to when), in hours."""

    title: str
    rows: Sequence[tuple[str, Sequence[tuple[float, float, str]]]]  # begin, end, kind: "spot" | "on-demand" | "available"


Plot = Lines | Stripes
