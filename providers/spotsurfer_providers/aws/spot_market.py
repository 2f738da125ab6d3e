"""The EC2 market as offers: instance types, zones, capacity, and spot and on-demand prices.

Spot prices change by the minute and are asked each time. Types, zones and the price list change by the month and are asked once
a day (`Memory`). The number of calls does not grow with jobs or machines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import structlog

from spotsurfer.model.errors import Invalid, ProviderError, UnknownToProvider
from spotsurfer.model.market import NO_GPUS, Gpus, Market, Offer, Pool
from spotsurfer.model.money import from_usd
from spotsurfer.ports.clock import Clock
from spotsurfer_providers.answer_memory import Memory
from spotsurfer_providers.aws.clients import Clients
from spotsurfer_providers.aws.error_codes import calling
from spotsurfer_providers.aws.run_instances import ImageSeen
from spotsurfer_providers.aws.settings import AwsSettings
from spotsurfer_providers.catalog import instance_types

# ---- Parsers: EC2's answers as types, prices and offers. Pure but for the shipped catalogue.

_MIB = 1 << 20
PRODUCT = "Linux/UNIX"
# Service Quotas: "All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests", "Running On-Demand Standard (…) instances".
QUOTAS = {Market.SPOT: "L-34B43A08", Market.ON_DEMAND: "L-1216C47A"}
_STANDARD = re.compile(r"(?:[acdhimrtz]|im|is)\d")


@dataclass(frozen=True, slots=True)
class TypeSeen:
    """An instance type."""

    name: str
    cpus: int
    memory_bytes: int
    gpus: Gpus = NO_GPUS


def types_of(pages: Iterable[Mapping[str, Any]]) -> dict[str, TypeSeen]:
    """Types of DescribeInstanceTypes by name."""
    found = [t for page in pages for t in page["InstanceTypes"]]
    return {
        t["InstanceType"]: TypeSeen(
            t["InstanceType"], t["VCpuInfo"]["DefaultVCpus"], t["MemoryInfo"]["SizeInMiB"] * _MIB, _gpus(t)
        )
        for t in found
    }


def _gpus(kind: Mapping[str, Any]) -> Gpus:
    """NVIDIA GPUs of one kind; a type with several kinds, or parts of one, offers none that a job can ask for."""
    found = [g for g in kind.get("GpuInfo", {}).get("Gpus", ()) if g.get("Manufacturer") == "NVIDIA" and g.get("Count", 0) > 0]
    if len(found) != 1:
        return NO_GPUS
    return Gpus(found[0].get("Name", ""), found[0]["Count"], found[0].get("MemoryInfo", {}).get("SizeInMiB", 0) * _MIB)


def spot_prices(entries: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], int]:
    """The newest price of each (zone, type), micro-dollars an hour; skips unreadable entries."""
    newest: dict[tuple[str, str], tuple[datetime, int]] = {}
    for entry in entries:
        try:
            key = (entry["AvailabilityZone"], entry["InstanceType"])
            at, price = entry["Timestamp"], from_usd(Decimal(entry["SpotPrice"]))
        except (KeyError, TypeError, InvalidOperation):
            continue
        if price > 0 and (key not in newest or newest[key][0] < at):
            newest[key] = (at, price)
    return {key: price for key, (_, price) in newest.items()}


def joined(names: Iterable[str], most: int) -> list[str]:
    """The names joined by commas, in as many texts as needed so that none is longer than `most` characters."""
    texts: list[str] = []
    for name in names:
        if texts and len(texts[-1]) + 1 + len(name) <= most:
            texts[-1] += f",{name}"
        else:
            texts.append(name)
    return texts


def list_prices(products: Iterable[str]) -> dict[str, int]:
    """On-demand prices of Linux by type, micro-dollars an hour, from products of the Pricing API (each a JSON text)."""
    found: dict[str, int] = {}
    for text in products:
        try:
            product = json.loads(text)
            name = product["product"]["attributes"]["instanceType"]
            terms = [d for t in product["terms"]["OnDemand"].values() for d in t["priceDimensions"].values()]
            prices = [from_usd(Decimal(d["pricePerUnit"]["USD"])) for d in terms if d.get("unit", "Hrs") == "Hrs"]
        except (ValueError, KeyError, TypeError, AttributeError, InvalidOperation):
            continue
        if max(prices, default=0) > 0:
            found[name] = max(prices)
    return found


def offers_of(
    region: str,
    types: Mapping[str, TypeSeen],
    zones: Iterable[tuple[str, str]],
    prices: tuple[Mapping[tuple[str, str], int], Mapping[str, int]],
    scores: Mapping[str, int],
) -> list[Offer]:
    """An offer for each (zone, type) and market that has a price. `prices`: spot by zone and type, on-demand by type."""
    spot, listed = prices
    offers: list[Offer] = []
    for zone, name in sorted(zones):
        kind, price = types.get(name), listed.get(name)
        if kind is None or price is None:
            continue
        pool, size = Pool("aws", region, zone, name), (kind.cpus, kind.memory_bytes)
        known = instance_types().get(name)
        band = known.interruption_band if known is not None else None
        offers.append(Offer(pool, Market.ON_DEMAND, price, price, *size, gpus=kind.gpus))
        if (zone, name) in spot:
            offers.append(Offer(pool, Market.SPOT, spot[zone, name], price, *size, band, scores.get(zone), gpus=kind.gpus))
    return offers


def within(offer: Offer, quotas: Mapping[Market, float]) -> bool:
    """Whether the account could get at least one of these: a type larger than the whole quota is never available."""
    quota = quotas.get(offer.market)
    return quota is None or not _STANDARD.match(offer.pool.instance_type) or offer.cpus <= quota


# ---- Market: asks EC2 and the price list, and remembers answers that seldom change.

DAY_SECONDS = 86400.0
HOUR_SECONDS = 3600.0  # images behind parameters change by the week; placement scores change slowly, and calls are limited
PRICES_AGAIN_SECONDS = 1800.0  # after a price list that could not be read
TARGET_CAPACITY = 20  # placement scores are requested for a fleet about as large as ours
PAGE = 100
FILTER_CHARACTERS_MAX = 1024  # limit of GetProducts
ARCHITECTURE = "x86_64"  # of the agent's runtime

log = structlog.get_logger(room="aws")


class SpotMarket:
    """Reads only. Methods raise ProviderError and its children."""

    def __init__(self, settings: AwsSettings, clients: Clients, clock: Clock) -> None:
        self._settings = settings
        self._aws = clients
        self._memory = Memory(clock)
        self._clock = clock

    def offers(self) -> list[Offer]:
        """Possible orders now: allowed types, in zones with a subnet, at today's prices."""
        types = self._memory.get("types", DAY_SECONDS, self._types)
        zones = self._memory.get("zones", DAY_SECONDS, lambda: self._zones(types))
        listed = self._list_prices(types)
        scores = (
            self._memory.get("scores", HOUR_SECONDS, lambda: self._scores(types)) if self._settings.placement_scores else {}
        )
        quotas = self._memory.get("quotas", HOUR_SECONDS, self._quotas)
        found = offers_of(self._settings.region, types, zones, (self._spot_prices(types), listed), scores)
        return [o for o in found if within(o, quotas)]

    def image(self) -> ImageSeen | None:
        """The image that new machines boot; None if the launch template has it."""
        name = self._settings.image
        if name is None:
            return None
        return self._memory.get("image", HOUR_SECONDS, lambda: self._image(name))

    # ---- questions

    def _quotas(self) -> dict[Market, float]:
        """The account's limit of vCPUs of standard types; a market with an unreadable quota is not limited here."""
        found: dict[Market, float] = {}
        for kind, code in QUOTAS.items():
            try:
                with calling("GetServiceQuota"):
                    answer = self._aws.quotas.get_service_quota(ServiceCode="ec2", QuotaCode=code)
                    found[kind] = float(answer["Quota"]["Value"])
            except ProviderError:
                continue
        return found

    def _types(self) -> dict[str, TypeSeen]:
        filters = [
            {"Name": "instance-type", "Values": list(self._settings.instance_types)},
            {"Name": "processor-info.supported-architecture", "Values": [ARCHITECTURE]},
            {"Name": "bare-metal", "Values": ["false"]},
        ]
        with calling("DescribeInstanceTypes"):
            pages = self._aws.ec2.get_paginator("describe_instance_types").paginate(
                Filters=filters, PaginationConfig={"PageSize": PAGE}
            )
            found = types_of(pages)
        if not found:
            wanted = ", ".join(self._settings.instance_types)
            raise Invalid(f"no instance type of {self._settings.region} matches {wanted}: check [provider.aws] instance_types")
        return found

    def _zones(self, types: Mapping[str, TypeSeen]) -> list[tuple[str, str]]:
        with calling("DescribeInstanceTypeOfferings"):
            pages = self._aws.ec2.get_paginator("describe_instance_type_offerings").paginate(
                LocationType="availability-zone",
                Filters=[{"Name": "instance-type", "Values": list(self._settings.instance_types)}],
            )
            found = [(o["Location"], o["InstanceType"]) for page in pages for o in page["InstanceTypeOfferings"]]
        here = [(zone, name) for zone, name in found if zone in self._settings.subnets and name in types]
        if not here:
            zones = ", ".join(sorted(self._settings.subnets))
            raise Invalid(
                f"none of the allowed instance types is offered in {zones}: check [provider.aws] subnets, instance_types"
            )
        return here

    def _spot_prices(self, types: Mapping[str, TypeSeen]) -> dict[tuple[str, str], int]:
        with calling("DescribeSpotPriceHistory"):
            pages = self._aws.ec2.get_paginator("describe_spot_price_history").paginate(
                InstanceTypes=sorted(types),
                ProductDescriptions=[PRODUCT],
                StartTime=self._clock.now(),  # the price in force of each pool
                Filters=[{"Name": "availability-zone", "Values": sorted(self._settings.subnets)}],
                PaginationConfig={"PageSize": 1000},
            )
            return spot_prices(entry for page in pages for entry in page["SpotPriceHistory"])

    def _list_prices(self, types: Mapping[str, TypeSeen]) -> dict[str, int]:
        """From the price list; if it can't be read, from the catalogue, with a later retry."""
        try:
            said = self._memory.get("prices", DAY_SECONDS, lambda: self._price_list(sorted(types)))
        except ProviderError as e:
            log.warning("prices.assumed", instead="the shipped catalogue, of us-east-1", reason=str(e))
            said = {}
            self._memory.put("prices", PRICES_AGAIN_SECONDS, said)
        known = instance_types()  # of us-east-1, at its date: for comparisons, not for bills
        return {**{n: known[n].on_demand_usd_micros_per_hour for n in types if n in known}, **said}

    def _price_list(self, names: Sequence[str]) -> dict[str, int]:
        fixed = {
            "regionCode": self._settings.region,
            "operatingSystem": "Linux",
            "preInstalledSw": "NA",
            "tenancy": "Shared",
            "capacitystatus": "Used",
        }
        filters = [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in fixed.items()]
        paginator, found = self._aws.pricing.get_paginator("get_products"), dict[str, int]()
        for some in joined(names, FILTER_CHARACTERS_MAX):
            of_them = [*filters, {"Type": "ANY_OF", "Field": "instanceType", "Value": some}]
            with calling("GetProducts"):
                pages = paginator.paginate(ServiceCode="AmazonEC2", Filters=of_them)
                found |= list_prices(text for page in pages for text in page["PriceList"])
        return found

    def _scores(self, types: Mapping[str, TypeSeen]) -> dict[str, int]:
        """How likely spot is available in each zone; empty if the call fails, because scores are only advice."""
        try:
            with calling("GetSpotPlacementScores"):
                answer = self._aws.ec2.get_spot_placement_scores(
                    InstanceTypes=sorted(types)[:1000],
                    TargetCapacity=TARGET_CAPACITY,
                    SingleAvailabilityZone=True,
                    RegionNames=[self._settings.region],
                )
                zones = self._aws.ec2.describe_availability_zones()["AvailabilityZones"]
                names = {z["ZoneId"]: z["ZoneName"] for z in zones}  # AWS answers with ids
                scores = answer["SpotPlacementScores"]
                return {names[s["AvailabilityZoneId"]]: int(s["Score"]) for s in scores if s.get("AvailabilityZoneId") in names}
        except ProviderError:
            return {}

    def _image(self, name: str) -> ImageSeen:
        wanted = self._parameter(name) if name.startswith("/") else name
        with calling("DescribeImages"):
            found = self._aws.ec2.describe_images(ImageIds=[wanted])["Images"]
        if not found:
            raise Invalid(f"there is no image {wanted} in {self._settings.region}: check [provider.aws] image")
        image = ImageSeen(wanted, found[0].get("RootDeviceName") or "/dev/xvda", found[0].get("Architecture") or ARCHITECTURE)
        if image.architecture != ARCHITECTURE:
            raise Invalid(f"[provider.aws] image {wanted} is for {image.architecture}: the agent needs {ARCHITECTURE}")
        return image

    def _parameter(self, name: str) -> str:
        try:
            with calling("GetParameter"):
                return str(self._aws.ssm.get_parameter(Name=name)["Parameter"]["Value"])
        except UnknownToProvider as e:
            raise Invalid(f"there is no SSM parameter {name}: check [provider.aws] image") from e
