"""Compute Engine as offers: machine types by zone, from the API once a day, with prices of a dated table.

The number of calls does not grow with jobs or machines.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog
from google.cloud import compute_v1

from spotsurfer.model.errors import Invalid, ProviderError
from spotsurfer.model.market import NO_GPUS, Gpus, Market, Offer, Pool
from spotsurfer.ports.clock import Clock
from spotsurfer_providers.answer_memory import Memory
from spotsurfer_providers.catalog import google_price_table
from spotsurfer_providers.catalog.google_price_table import Prices
from spotsurfer_providers.gcp.clients import ONCE, Clients
from spotsurfer_providers.gcp.error_codes import calling
from spotsurfer_providers.gcp.settings import GcpSettings, region_of

DAY_SECONDS, HOUR_SECONDS = 86400.0, 3600.0
AGAIN_SECONDS = 60.0
TARGET_CAPACITY = 20  # advice is asked for a fleet about as large as ours
ADVICE_TYPES_MAX = 5  # in one question
log = structlog.get_logger(room="gcp")
PAGE = 500
_MIB = 1 << 20
_GIB = 1 << 30
# Chip and memory of one GPU, by the name in a machine type ("GPU machine types", Compute Engine's documentation); a type with
# another one, or with parts of one, offers none that a job can ask for.
GPUS = {
    "nvidia-l4": ("l4", 24 * _GIB),
    "nvidia-tesla-a100": ("a100", 40 * _GIB),
    "nvidia-a100-80gb": ("a100", 80 * _GIB),
    "nvidia-h100-80gb": ("h100", 80 * _GIB),
    "nvidia-h100-mega-80gb": ("h100", 80 * _GIB),
    "nvidia-h200-141gb": ("h200", 141 * _GIB),
}


@dataclass(frozen=True, slots=True)
class TypeSeen:
    """A machine type in one zone."""

    name: str
    zone: str
    cpus: int
    memory_bytes: int
    gpus: Gpus = NO_GPUS


def type_of(found: Any) -> TypeSeen:
    """A machine type of the API."""
    return TypeSeen(found.name, found.zone, found.guest_cpus, found.memory_mb * _MIB, _gpus(found.accelerators))


def _gpus(accelerators: Iterable[Any]) -> Gpus:
    found = [(a.guest_accelerator_type, a.guest_accelerator_count) for a in accelerators]
    if len(found) != 1 or found[0][0] not in GPUS:
        return NO_GPUS
    chip, memory_bytes = GPUS[found[0][0]]
    return Gpus(chip, found[0][1], memory_bytes)


def offers_of(types: Iterable[TypeSeen], prices: Prices, scores: Mapping[str, int | None]) -> list[Offer]:
    """An offer for each (zone, type) and market that has a price. `prices`: standard and spot, by region and type.

    `scores`: by zone, as far as they are known.
    """
    offers: list[Offer] = []
    for kind in sorted(types, key=lambda t: (t.zone, t.name)):
        region = region_of(kind.zone)
        listed, spot = prices.get((region, kind.name), (0, None))
        if not listed:
            continue
        pool, size = Pool("gcp", region, kind.zone, kind.name), (kind.cpus, kind.memory_bytes)
        offers.append(Offer(pool, Market.ON_DEMAND, listed, listed, *size, gpus=kind.gpus))
        if spot is not None:
            offers.append(Offer(pool, Market.SPOT, spot, listed, *size, placement_score=scores.get(kind.zone), gpus=kind.gpus))
    return offers


def _one_of_each_family(types: Iterable[str]) -> list[str]:
    """As many as one question takes."""
    families = {name.partition("-")[0]: name for name in sorted(types, reverse=True)}
    return sorted(families.values())[:ADVICE_TYPES_MAX]


class VmMarket:
    """Reads only. Raises ConfigError for a bad table of prices; methods raise ProviderError and its children."""

    def __init__(self, settings: GcpSettings, clients: Clients, clock: Clock) -> None:
        self._settings = settings
        self._gcp = clients
        self._memory, self._clock = Memory(clock), clock
        self._failures: dict[str, tuple[datetime, ProviderError]] = {}  # of zones, and until when they are not asked again
        self.prices = google_price_table.shipped() if settings.prices is None else google_price_table.read(settings.prices)
        log.info("prices.read", date=str(self.prices.date), path=str(settings.prices or "shipped"))

    def offers(self) -> list[Offer]:
        """Possible orders now: allowed types, in zones with a subnetwork. A zone that can't be asked offers nothing now."""
        types: list[TypeSeen] = []
        failure: ProviderError | None = None
        for zone in self._settings.subnets:
            try:
                types += self._memory.get(zone, DAY_SECONDS, partial(self._types, zone))
            except ProviderError as e:
                failure = e
        if not types and failure is not None:
            raise failure
        if not types:
            wanted, zones = ", ".join(self._settings.machine_types), ", ".join(sorted(self._settings.subnets))
            raise Invalid(f"no machine type in {zones} matches {wanted}: check [provider.gcp] subnets, machine_types")
        return offers_of(types, self.prices.prices, self._scores(types) if self._settings.placement_scores else {})

    def _scores(self, types: Iterable[TypeSeen]) -> dict[str, int | None]:
        of_zone: dict[str, list[str]] = {}
        for kind in types:
            of_zone.setdefault(kind.zone, []).append(kind.name)
        return {z: self._memory.get(f"score {z}", HOUR_SECONDS, partial(self._score, z, names)) for z, names in of_zone.items()}

    def _score(self, zone: str, types: Iterable[str]) -> int | None:
        """How likely spot is to be had in a zone, 1 to 10; None if the call fails, because it is only advice.

        Google serves advice on spot in its beta alone ("View the availability of Spot VMs", Compute Engine's documentation).
        """
        body = {
            "distributionPolicy": {"targetShape": "ANY_SINGLE_ZONE", "zones": [{"zone": f"zones/{zone}"}]},
            "instanceFlexibilityPolicy": {"instanceSelections": {"any": {"machineTypes": _one_of_each_family(types)}}},
            "instanceProperties": {"scheduling": {"provisioningModel": "SPOT"}},
            "size": TARGET_CAPACITY,
        }
        try:
            with calling("advice.capacity"):
                path = f"/compute/beta/projects/{self._settings.project}/regions/{region_of(zone)}/advice/capacity"
                found = self._gcp.post("compute", path, body).json()["recommendations"]
                return 1 + round(9 * max(float(r["scores"]["obtainability"]) for r in found))
        except ProviderError as e:
            log.warning("placement_score.unknown", zone=zone, reason=str(e))
            return None

    def _types(self, zone: str) -> list[TypeSeen]:
        """Raises ProviderError, and for a while the same again: a question may take its time, and the tick waits."""
        now = self._clock.now()
        until, failure = self._failures.get(zone, (now, None))
        if failure is not None and now < until:
            raise failure
        try:
            return self._asked(zone)
        except ProviderError as e:
            self._failures[zone] = now + timedelta(seconds=AGAIN_SECONDS), e
            log.warning("machine_types.unknown", zone=zone, reason=str(e))
            raise

    def _asked(self, zone: str) -> list[TypeSeen]:
        request = compute_v1.ListMachineTypesRequest(
            project=self._settings.project, zone=zone, filter="isSharedCpu = false", max_results=PAGE
        )
        with calling("machineTypes.list"):
            return [type_of(t) for t in self._gcp.machine_types.list(request, **ONCE) if self._is_allowed(t)]

    def _is_allowed(self, found: Any) -> bool:
        wanted = any(fnmatch.fnmatchcase(found.name, pattern) for pattern in self._settings.machine_types)
        return (
            wanted
            and found.zone in self._settings.subnets
            and found.architecture in ("", "X86_64")
            and not found.deprecated.state
        )
