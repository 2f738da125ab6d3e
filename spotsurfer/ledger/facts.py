"""What a bill is made of: facts about machines, stored bytes and what is kept, and the rules that give them prices. Values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from spotsurfer.model.charges import KeptImage, Stay
from spotsurfer.model.job import OVER, Attempt, JobId
from spotsurfer.model.machine import GONE, Machine
from spotsurfer.model.prices import FREE, ListPrice, Override, Steps, Tariff
from spotsurfer.ports.provider import BillingRule


class Counts(NamedTuple):
    """What an agent had counted at a time, since its attempt began."""

    at: datetime
    read_bytes: int = 0
    sent_bytes: int = 0
    gets: int = 0
    puts: int = 0


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """An attempt's machine. `steps`: its price per hour from a moment on; `counts`: at least the last ones of each UTC day.

    `shared`: it is kept, so its life is not the attempt's; `stays`: of all that were on it with the attempt, or later.
    """

    attempt: Attempt
    payer: JobId
    steps: Steps = ()
    counts: Sequence[Counts] = ()
    shared: Machine | None = None
    stays: Sequence[Stay] = ()

    @property
    def settled(self) -> bool:
        """Whether what it costs changes no more."""
        if self.attempt.state not in OVER:
            return False
        return (
            self.attempt.launched_at is None
            or self.shared is None
            or self.shared.state in GONE
            or any(s.outlives(self.own) for s in self.stays)
        )

    @property
    def own(self) -> Stay:
        """The attempt's stay on a shared machine."""
        return next(s for s in self.stays if (s.job, s.attempt) == (self.attempt.job, self.attempt.number))


@dataclass(frozen=True, slots=True)
class StoredFacts:
    """Bytes that a job keeps in the store, from a moment on."""

    job: JobId
    payer: JobId
    levels: Steps


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that costs money. `controller_since`: when its host began to cost; None = it is not billed."""

    machines: Sequence[MachineFacts] = ()
    stored: Sequence[StoredFacts] = ()
    images: Sequence[KeptImage] = ()
    controller_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """Prices and rules of all providers, and the operator's own prices over them."""

    machines: Mapping[str, Sequence[BillingRule]] = field(default_factory=dict)  # by provider, oldest first
    prices: Mapping[str, Sequence[ListPrice]] = field(default_factory=dict)
    tariff: Tariff = FREE
    overrides: Sequence[Override] = ()  # the last one that fits counts
    controller_usd_micros_per_hour: int = 0

    def billing(self, provider: str, launched_at: datetime) -> BillingRule:
        """The rule for a machine launched then; the usual one for an unknown provider."""
        known = self.machines.get(provider, ())
        return next((r for r in reversed(known) if r.begins <= launched_at), known[0] if known else BillingRule())
