"""How clouds bill, and what they take for all but machines and transfer: the tables beside this file, by date."""

from __future__ import annotations

import csv
import functools
import io
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import resources

from spotsurfer.model.charges import ChargeKind
from spotsurfer.model.market import Market
from spotsurfer.model.money import from_usd
from spotsurfer.model.prices import ALWAYS, ListPrice, Match
from spotsurfer.ports.provider import BillingRule


@functools.cache
def billing_rules(provider: str) -> tuple[BillingRule, ...]:
    """How a cloud bills machines, the oldest rule first."""
    rows = (row for row in _rows("billing_rules.csv") if row["provider"] == provider)
    rules = [
        BillingRule(
            float(row["minimum_seconds"]), row["reclaimed_first_hour_free"] == "yes", _day(row["begins"]), row["source"]
        )
        for row in rows
    ]
    return tuple(sorted(rules, key=lambda r: r.begins))


@functools.cache
def list_prices(provider: str) -> tuple[ListPrice, ...]:
    """A cloud's list prices, in the order of the table."""
    return tuple(_price(row) for row in _rows("list_prices.csv") if row["provider"] == provider)


def _price(row: dict[str, str]) -> ListPrice:
    of = Match(
        ChargeKind(row["kind"]),
        row["provider"],
        instance_type=row["instance_type"] or "*",
        market=Market(row["market"]) if row["market"] else None,
        detail=row["detail"],
    )
    return ListPrice(of, from_usd(row["usd"]), _day(row["begins"]), row["source"])


def _day(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC) if text else ALWAYS


def _rows(name: str) -> Iterator[dict[str, str]]:
    return csv.DictReader(io.StringIO(resources.files("spotsurfer_providers.catalog").joinpath(name).read_text()))
