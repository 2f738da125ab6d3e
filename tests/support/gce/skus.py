"""SKUs as the billing catalogue shows them, fields and all."""

from __future__ import annotations

import itertools
from decimal import Decimal

from support.gce.cloud import Json

AMERICAS = ("us-central1", "us-east1", "us-west1")
# Usage unit: its name, base unit and how many of those.
UNITS: dict[str, tuple[str, str, int]] = {
    "h": ("hour", "s", 3600),
    "mo": ("month", "s", 2678400),
    "GiBy.h": ("gibibyte hour", "By.s", 3600 * 2**30),
    "GBy.h": ("gigabyte hour", "By.s", 3600 * 10**9),
    "GiBy.mo": ("gibibyte month", "By.s", 2678400 * 2**30),
}
_numbers = itertools.count(0x1000)


def sku(description: str, *usd: str, unit: str = "h", regions: tuple[str, ...] = AMERICAS, usage: str = "") -> Json:
    """One SKU. `usd`: the price of each tier. `usage`: how it is sold; as its description says, unless given."""
    words, base, factor = UNITS[unit]
    groups = {" GPU ": "GPU", "Local S": "LocalSSD", " Ram ": "RAM", "N1 ": "N1Standard"}
    id_ = f"{next(_numbers):04X}-0000-0000"
    return {
        "name": f"services/6F81-5844-456A/skus/{id_}",
        "skuId": id_,
        "description": description,
        "category": {
            "serviceDisplayName": "Compute Engine",
            "resourceFamily": {"SSD": "Storage", "Network": "Network"}.get(description.split(" ")[0], "Compute"),
            "resourceGroup": next((group for word, group in groups.items() if word in description), "CPU"),
            "usageType": usage or ("Preemptible" if "Spot Preemptible" in description else "OnDemand"),
        },
        "serviceRegions": list(regions),
        "pricingInfo": [
            {
                "summary": "",
                "pricingExpression": {
                    "usageUnit": unit,
                    "displayQuantity": 1,
                    "tieredRates": [
                        {"startUsageAmount": 1000 * i, "unitPrice": {"currencyCode": "USD", **_money(Decimal(price))}}
                        for i, price in enumerate(usd)
                    ],
                    "usageUnitDescription": words,
                    "baseUnit": base,
                    "baseUnitDescription": {"s": "second", "By.s": "byte second"}[base],
                    "baseUnitConversionFactor": factor,
                },
                "currencyConversionRate": 1,
                "effectiveTime": "2026-08-03T10:52:50.681Z",
            }
        ],
        "serviceProviderName": "Google",
        "geoTaxonomy": {"type": "MULTI_REGIONAL" if len(regions) > 1 else "REGIONAL", "regions": list(regions)},
    }


def _money(price: Decimal) -> dict[str, str | int]:
    return {"units": str(int(price)), "nanos": int(price % 1 * 10**9)}


def machine(family: str, core: str, ram: str, place: str = "Americas", regions: tuple[str, ...] = AMERICAS) -> list[Json]:
    """Cores and memory of a family; `family` in the words of SKUs, "Instance" included."""
    return [
        sku(f"{family} Core running in {place}", core, regions=regions),
        sku(f"{family} Ram running in {place}", ram, unit="GiBy.h", regions=regions),
    ]
