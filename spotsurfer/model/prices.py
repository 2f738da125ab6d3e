"""List prices by date, an operator's own prices over them, and what clouds take for bytes on their way. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from fractions import Fraction

from spotsurfer.model.charges import ChargeKind
from spotsurfer.model.market import Market

GIB = 1 << 30
ALWAYS = datetime(1970, 1, 1, tzinfo=UTC)  # begins what was never otherwise
HOUR_SECONDS = 3600
MONTH_SECONDS = 730 * HOUR_SECONDS  # clouds' month: both AWS and Google reckon with 730 hours
PER_THOUSAND = 1000
# How much of a line's quantity a price is for: a price of MACHINE is for 3600 seconds, one of DISK for a GiB a month.
PRICED_QUANTITY: dict[ChargeKind, int] = {
    ChargeKind.MACHINE: HOUR_SECONDS,
    ChargeKind.MINIMUM: HOUR_SECONDS,
    ChargeKind.GPU: HOUR_SECONDS,
    ChargeKind.ADDRESS: HOUR_SECONDS,
    ChargeKind.CONTROLLER: HOUR_SECONDS,
    ChargeKind.DISK: MONTH_SECONDS,
    ChargeKind.IMAGE: MONTH_SECONDS,
    ChargeKind.STORED: MONTH_SECONDS,
    ChargeKind.TRANSFER: GIB,
    ChargeKind.REQUESTS: PER_THOUSAND,
}


@dataclass(frozen=True, slots=True)
class Thing:
    """What has a price. Empty texts and None: it has no such thing, as a disk has no market."""

    kind: ChargeKind
    provider: str = ""
    region: str = ""
    instance_type: str = ""
    market: Market | None = None
    detail: str = ""  # as of a line: "put", "get", "read", "sent"


@dataclass(frozen=True, slots=True)
class Match:
    """For which things a price is: wildcards as of fnmatch; None and "" take any."""

    kind: ChargeKind
    provider: str = "*"
    region: str = "*"
    instance_type: str = "*"
    market: Market | None = None
    detail: str = ""

    def fits(self, thing: Thing) -> bool:
        """Whether it is for this thing."""
        return (
            self.kind is thing.kind
            and fnmatchcase(thing.provider, self.provider)
            and fnmatchcase(thing.region, self.region)
            and fnmatchcase(thing.instance_type, self.instance_type)
            and self.market in (None, thing.market)
            and self.detail in ("", thing.detail)
        )


@dataclass(frozen=True, slots=True)
class ListPrice:
    """A cloud's price from a day on, until the next one for the same things. Units: PRICED_QUANTITY."""

    of: Match
    usd_micros: int
    begins: datetime = ALWAYS
    source: str = ""


@dataclass(frozen=True, slots=True)
class Override:
    """An operator's own price while it holds: an amount in the unit of the kind, or percent of the price otherwise in force."""

    of: Match
    begins: datetime = ALWAYS
    until: datetime | None = None  # exclusive
    usd_micros: int | None = None
    percent: Fraction | None = None

    def over(self, price: Fraction) -> Fraction:
        """The price instead of this one."""
        return Fraction(self.usd_micros) if self.usd_micros is not None else price * (self.percent or Fraction(0)) / 100


@dataclass(frozen=True, slots=True)
class PriceSpan:
    """One price while it is in force, micro-dollars for PRICED_QUANTITY."""

    begins: datetime
    ends: datetime
    price: Fraction


Steps = Sequence[tuple[datetime, int]]  # a price or an amount from a moment on


def listed(prices: Sequence[ListPrice], thing: Thing) -> list[tuple[datetime, int]]:
    """Steps of a thing's list price, oldest first; of several that begin together the last one counts."""
    return sorted(((p.begins, p.usd_micros) for p in prices if p.of.fits(thing)), key=lambda step: step[0])


def spans(thing: Thing, steps: Steps, overrides: Sequence[Override], begins: datetime, ends: datetime) -> list[PriceSpan]:
    """A thing's prices between two moments. `steps`: oldest first, 0 before the first; the last override that fits wins."""
    own = [o for o in overrides if o.of.fits(thing)]
    marks = {at for at, _ in steps} | {at for o in own for at in (o.begins, o.until) if at is not None}
    cuts = [begins, *sorted(at for at in marks if begins < at < ends), ends]
    return [PriceSpan(at, until, _at(at, steps, own)) for at, until in itertools.pairwise(cuts) if at < until]


def _at(moment: datetime, steps: Steps, own: Sequence[Override]) -> Fraction:
    price = Fraction(next((p for at, p in reversed(steps) if at <= moment), 0))
    found = [o for o in own if o.begins <= moment and (o.until is None or moment < o.until)]
    return found[-1].over(price) if found else price


# ---- What clouds take for bytes that go between the store and machines elsewhere


@dataclass(frozen=True, slots=True)
class Place:
    """A region of a provider; "" = unknown, and then nothing is taken for a way within the provider."""

    provider: str = ""
    region: str = ""


@dataclass(frozen=True, slots=True)
class EgressPrices:
    """Micro-dollars for each GiB that leaves a region of a cloud. What arrives is free at all of them."""

    region_usd_micros: int = 0  # to another region of the same cloud
    internet_usd_micros: int = 0  # to the internet, and so to other clouds


@dataclass(frozen=True, slots=True)
class Tariff:
    """Where the store lies, and what each provider takes."""

    store: Place = Place()
    egress: Mapping[str, EgressPrices] = field(default_factory=dict)  # by provider

    def is_free(self, there: Place) -> bool:
        """Whether nothing is taken between the store and machines there, in either direction."""
        return not (self.per_gib(there, "read") or self.per_gib(there, "sent"))

    def usd_micros(self, there: Place, read_bytes: float, sent_bytes: float) -> int:
        """The price of what machines there read from the store and send to it, rounded up."""
        micros = read_bytes * self.per_gib(there, "read") + sent_bytes * self.per_gib(there, "sent")
        return -int(-micros // GIB)

    def per_gib(self, there: Place, direction: str) -> int:
        """Micro-dollars for a GiB that machines there `read` from the store, or have `sent` to it."""
        ends = (self.store, there) if direction == "read" else (there, self.store)
        return self._per_gib(*ends)

    def _per_gib(self, source: Place, target: Place) -> int:
        prices = self.egress.get(source.provider, EgressPrices())
        if source.provider != target.provider:
            return prices.internet_usd_micros if source.provider and target.provider else 0
        return prices.region_usd_micros if source.region and target.region and source.region != target.region else 0


FREE = Tariff()
