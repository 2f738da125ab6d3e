"""The lines of the bill as rows of the FOCUS specification (FinOps Open Cost and Usage Specification 1.2). Pure.

Columns of ours that FOCUS has not begin with x_, as it asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from spotsurfer.model.charges import ChargeKind, ChargeLine
from spotsurfer.model.cost_report import JobLabels
from spotsurfer.model.market import Market
from spotsurfer.model.money import MICROS
from spotsurfer.model.prices import GIB

MONEY = ("BilledCost", "EffectiveCost", "ContractedCost", "ListCost")  # in US dollars
TIMES = ("BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd")
QUANTITIES = ("ConsumedQuantity", "PricingQuantity")
COLUMNS = (
    *(*MONEY, "BillingCurrency", *TIMES),
    *("ChargeCategory", "ChargeFrequency", "ChargeDescription", "ServiceCategory", "ServiceName"),
    *("ProviderName", "PublisherName", "InvoiceIssuerName", "RegionId", "AvailabilityZone"),
    *("ResourceId", "ResourceType", "SkuId", "PricingCategory", "PricingQuantity", "PricingUnit"),
    *("ConsumedQuantity", "ConsumedUnit", "Tags"),
    *("x_Kind", "x_Job", "x_Attempt", "x_Name", "x_Owner", "x_RunAs", "x_Project"),
)
HOUR = 3600.0
# Of each kind: service category, service, resource type, unit of its quantity, and how much of the line's quantity that is.
SAYS: dict[ChargeKind, tuple[str, str, str, str, float]] = {
    ChargeKind.MACHINE: ("Compute", "machines", "Instance", "Hours", HOUR),
    ChargeKind.MINIMUM: ("Compute", "machines", "Instance", "Hours", HOUR),
    ChargeKind.GPU: ("Compute", "machines", "GPU", "Hours", HOUR),
    ChargeKind.DISK: ("Storage", "disks", "Disk", "GiB-Hours", HOUR),
    ChargeKind.IMAGE: ("Storage", "images", "Image", "GiB-Hours", HOUR),
    ChargeKind.ADDRESS: ("Networking", "addresses", "IP address", "Hours", HOUR),
    ChargeKind.TRANSFER: ("Networking", "transfer", "", "GiB", float(GIB)),
    ChargeKind.REQUESTS: ("Storage", "store", "", "Requests", 1.0),
    ChargeKind.STORED: ("Storage", "store", "", "GiB-Hours", HOUR),
    ChargeKind.CONTROLLER: ("Compute", "controller", "Instance", "Hours", HOUR),
}


def rows(lines: Sequence[ChargeLine], labels: Sequence[JobLabels]) -> Iterator[dict[str, Any]]:
    """A row for each line, of COLUMNS: MONEY as Decimal, TIMES with their zone, QUANTITIES as float, Tags as a mapping.

    ListCost is the price on demand of the same type. Seconds that a cloud bills beyond the use are priced, not consumed.
    """
    known = {told.job: told for told in labels}
    for line in lines:
        payer = line.payer or line.job
        yield _row(line, known.get(payer) if payer is not None else None)


def _row(line: ChargeLine, job: JobLabels | None) -> dict[str, Any]:
    category, service, resource_type, unit, per = SAYS[line.kind]
    quantity = line.quantity / per
    spent, listed = (Decimal(micros) / MICROS for micros in (line.usd_micros, line.usd_micros_on_demand))
    month, after = _month(line.begins)
    provider = line.provider or "spotsurfer"
    ours: Mapping[str, str] = {"spotsurfer:job": str(line.job)} if line.job is not None else {}
    if line.attempt is not None:
        ours = {**ours, "spotsurfer:attempt": str(line.attempt)}
    return {
        **{"BilledCost": spent, "EffectiveCost": spent, "ContractedCost": spent, "ListCost": listed, "BillingCurrency": "USD"},
        **{
            "BillingPeriodStart": month,
            "BillingPeriodEnd": after,
            "ChargePeriodStart": line.begins,
            "ChargePeriodEnd": line.ends,
        },
        **{"ChargeCategory": "Usage", "ChargeFrequency": "Usage-Based", "ChargeDescription": _described(line)},
        **{"ServiceCategory": category, "ServiceName": service, "ProviderName": provider, "PublisherName": provider},
        **{"InvoiceIssuerName": provider, "RegionId": line.region, "AvailabilityZone": line.zone},
        **{"ResourceId": line.resource, "ResourceType": resource_type, "SkuId": _sku(line)},
        **{"PricingCategory": "Dynamic" if line.market is Market.SPOT else "Standard"},
        **{"PricingQuantity": quantity, "PricingUnit": unit, "ConsumedUnit": unit},
        "ConsumedQuantity": 0.0 if line.kind is ChargeKind.MINIMUM else quantity,
        "Tags": {**(job.tags if job else {}), **ours},
        **{"x_Kind": str(line.kind), "x_Job": str(line.payer or line.job or ""), "x_Attempt": line.attempt},
        **{"x_Name": job.name if job else "", "x_Owner": job.owner if job else ""},
        **{"x_RunAs": job.run_as if job else "", "x_Project": job.project if job else ""},
    }


def _described(line: ChargeLine) -> str:
    words = (str(line.market or ""), line.instance_type, str(line.kind), line.detail)
    return " ".join(word for word in words if word)


def _sku(line: ChargeLine) -> str:
    words = (line.provider, str(line.kind), line.instance_type, str(line.market or ""), line.detail)
    return "/".join(word for word in words if word)


def _month(at: datetime) -> tuple[datetime, datetime]:
    begins = at.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return begins, (begins + timedelta(days=32)).replace(day=1)
