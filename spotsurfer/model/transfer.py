"""What clouds take for bytes that go between the store and machines elsewhere. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

GIB = 1 << 30


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
