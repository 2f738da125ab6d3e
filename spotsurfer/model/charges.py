"""The lines of a bill: what was paid for, when, for whom, and what it came to."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from spotsurfer.model.job import AttemptNumber, JobId
from spotsurfer.model.market import Market


class ChargeKind(StrEnum):
    """What a line charges for, and in which unit its quantity is."""

    MACHINE = "machine"  # seconds of use
    MINIMUM = "minimum"  # seconds that a cloud bills beyond the use
    GPU = "gpu"  # GPU-seconds of a machine, if its cloud bills them apart from it
    DISK = "disk"  # gigabyte-seconds of a machine's disk
    IMAGE = "image"  # gigabyte-seconds of machine images and snapshots
    ADDRESS = "address"  # seconds of a public address
    TRANSFER = "transfer"  # bytes between a machine and a store elsewhere
    REQUESTS = "requests"  # requests to the store
    STORED = "stored"  # gigabyte-seconds in the store
    CONTROLLER = "controller"  # seconds of the controller's own host


@dataclass(frozen=True, slots=True)
class ChargeLine:
    """One line. A day in UTC that a charge lasts is a line of its own, so that any days can be added up.

    Money is integer micro-dollars. The lines of one charge add up to the charge to the last micro-dollar, however divided.
    """

    kind: ChargeKind
    begins: datetime
    ends: datetime
    quantity: float
    usd_micros: int
    usd_micros_on_demand: int  # the same at the on-demand list price of the same type; equal where there is no spot price
    job: JobId | None = None  # whose machine or data it was; None = nobody's own, as the controller's host
    payer: JobId | None = None  # whose bill it is on: of a rehearsal its parent, else the job
    attempt: int | None = None
    provider: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    market: Market | None = None
    resource: str = ""  # the cloud's name of it, as an instance id
    detail: str = ""  # "read", "sent", "put", "get", "free" (an interrupted first hour); "" = the kind says all


@dataclass(frozen=True, slots=True)
class KeptImage:
    """A machine image or snapshot that the operator keeps."""

    name: str
    provider: str
    gib: float
    begins: datetime
    region: str = ""
    until: datetime | None = None


@dataclass(frozen=True, slots=True, order=True)
class Stay:
    """An attempt's time on a machine. `ends`: None = it is there still; `weight`: processors that its job asked for."""

    begins: datetime
    job: JobId
    attempt: AttemptNumber
    ends: datetime | None
    weight: int

    def there(self, at: datetime) -> bool:
        """Whether it is on the machine then."""
        return self.begins <= at and (self.ends is None or self.ends > at)

    def outlives(self, other: Stay) -> bool:
        """Whether it leaves later."""
        return other.ends is not None and (self.ends is None or (self.ends, self) > (other.ends, other))
