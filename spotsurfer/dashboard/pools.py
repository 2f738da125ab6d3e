"""Pools as a page shows them: prices, how long machines last, rests after a refusal, and when spot could be had. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from spotsurfer.model.actions import Preview
from spotsurfer.model.job import JobSpec
from spotsurfer.model.market import Market, Offer
from spotsurfer.model.snapshot import SpotSeen

SHOWN = timedelta(hours=48)
SMALL = JobSpec("pools", ("true",), memory_bytes=1)  # fits anywhere: its preview has all offers


@dataclass(slots=True)
class Row:
    """A pool. Spans of `strip` are percent of the time shown: begin, length, and "up", "down" or "unknown"."""

    pool: str
    offers: dict[Market, Offer] = field(default_factory=dict)
    why_not: dict[Market, str] = field(default_factory=dict)
    strip: Sequence[tuple[float, float, str]] = ()
    up: float | None = None  # share of the known time

    @property
    def spot(self) -> Offer | None:
        """The offer of spot."""
        return self.offers.get(Market.SPOT)

    @property
    def list_price(self) -> int | None:
        """Micro-dollars an hour on demand."""
        return next((o.list_price_usd_micros_per_hour for o in self.offers.values()), None)

    @property
    def saves(self) -> float | None:
        """Percent that spot is cheaper."""
        if self.spot is None or not self.list_price:
            return None
        return 100 - 100 * self.spot.price_usd_micros_per_hour / self.list_price

    @property
    def watched_hours(self) -> float:
        """Of our own spot machines there."""
        return sum(self.spot.lives.watched) / 3600 if self.spot else 0.0

    @property
    def lasts_hours(self) -> float | None:
        """Hours to a loss, on average; None = none was seen."""
        losses = self.spot.lives.losses if self.spot else 0
        return self.watched_hours / losses if losses else None


def rows(preview: Preview | None, spots: Mapping[str, Sequence[SpotSeen]], now: datetime) -> list[Row]:
    """All pools that are offered or were watched, by name."""
    found: dict[str, Row] = {}
    offers = [(o, "") for o in preview.choices] + list(preview.rejected) if preview else []
    for offer, why in offers:
        row = found.setdefault(str(offer.pool), Row(str(offer.pool)))
        row.offers[offer.market] = offer
        if why:
            row.why_not[offer.market] = why
    for pool, seen in spots.items():
        row = found.setdefault(pool, Row(pool))
        row.strip = strip(seen, now)
        known = sum(length for _, length, kind in row.strip if kind != "unknown")
        row.up = 100 * sum(length for _, length, kind in row.strip if kind == "up") / known if known else None
    return [found[name] for name in sorted(found)]


def strip(seen: Sequence[SpotSeen], now: datetime) -> list[tuple[float, float, str]]:
    """Spans of availability in the time shown."""
    begins = now - SHOWN
    spans = []
    for one, end in zip(seen, [*(s.at for s in seen[1:]), now], strict=True):
        a, b = max(one.at, begins), min(end, now)
        if b > a:
            kind = {True: "up", False: "down", None: "unknown"}[one.up]
            spans.append((100 * ((a - begins) / SHOWN), 100 * ((b - a) / SHOWN), kind))
    return spans
