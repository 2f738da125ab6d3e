"""A second witness of what the cloud does to machines, besides the agents on them: a queue of the cloud's events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from spotsurfer.model.ids import InstanceId


class Sign(StrEnum):
    """What was said of an instance."""

    INTERRUPTION = "interruption"  # it will be taken
    REBALANCE = "rebalance"  # it is more likely than others to be taken
    RETIREMENT = "retirement"  # its host will be taken out of service, some day
    STATE = "state"  # its state changed: the next listing tells


@dataclass(frozen=True, slots=True)
class Sighting:
    """One event about one instance. `age_seconds` is counted by the cloud's own clock: no clock of ours is compared with it."""

    instance: InstanceId
    sign: Sign
    age_seconds: float
    text: str  # for people


@dataclass(frozen=True, slots=True)
class Letter:
    """One message of the queue. `receipt` settles it; `unreadable` says why nothing could be made of it."""

    receipt: str
    sightings: Sequence[Sighting] = ()
    unreadable: str = ""


class Witness(Protocol):
    """Messages come once or more often, in any order, and are gone only when they were settled.

    Methods may raise model.errors.ProviderError and its children.
    """

    def read(self) -> Sequence[Letter]:
        """What there is now, at most a hundred or so; it does not wait. What is not settled comes again after a while."""
        ...

    def settle(self, letters: Sequence[Letter]) -> None:
        """These were handled: they are not to come again."""
        ...
