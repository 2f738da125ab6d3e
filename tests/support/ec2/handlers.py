"""What the layer answers itself; everything else is moto's."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from moto.ec2.models import ec2_backends
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS
from spotsurfer_providers.catalog import instance_types
from support.ec2 import machines as m
from support.ec2.cloud import ACCOUNT, Cloud
from support.ec2.errors import refusal
from support.ec2.launch import Forward, run_instances
from support.ec2.machines import Machine
from support.ec2.market import QUOTAS
from support.ec2.wire import Call, Refused

PAGE_MAX = 1000


def describe_instances(cloud: Cloud, call: Call, forward: Forward) -> dict[str, Any]:
    """By id or by filter, a page at a time."""
    found = _select(cloud, call, "MaxResults" in call.params)
    page, more = _page(call.params, found)
    grouped: dict[str, dict[str, Any]] = {}
    for machine, tags in page:
        held = grouped.setdefault(machine.reservation["ReservationId"], {**machine.reservation, "Groups": [], "Instances": []})
        held["Instances"].append(machine.described(tags))
    return {"Reservations": list(grouped.values()), **more}


def _select(cloud: Cloud, call: Call, paged: bool) -> list[tuple[Machine, dict[str, str]]]:
    wanted: Sequence[str] = call.params.get("InstanceIds") or []
    if wanted and paged:
        raise refusal("InvalidParameterCombination", one="instancesSet", other="maxResults")
    now = cloud.now()
    with cloud.lock:
        visible = {x.id: x for x in cloud.machines.values() if x.region == call.region and x.visible_at <= now}
        missing = [i for i in wanted if i not in visible]
        if missing:
            if not all(i.startswith("i-") for i in missing):
                raise refusal("InvalidInstanceID.Malformed", id=missing[0])
            raise refusal("InvalidInstanceID.NotFound", id=", ".join(missing))
        chosen = [visible[i] for i in wanted] if wanted else list(visible.values())
        both = [(x, cloud.tags(x.region, x.id)) for x in chosen]
        return [(x, tags) for x, tags in both if m.meets(x, tags, call.params.get("Filters") or [])]


def _page(params: Mapping[str, Any], found: Sequence[Any]) -> tuple[Sequence[Any], dict[str, str]]:
    size = int(params.get("MaxResults") or PAGE_MAX)
    if not 5 <= size <= PAGE_MAX:
        raise refusal("InvalidParameterValue", name="maxResults (5 to 1000)", value=size)
    token = str(params.get("NextToken") or "page-0")
    if not token.removeprefix("page-").isdigit():
        raise refusal("InvalidNextToken")
    begin = int(token.removeprefix("page-"))
    more = {"NextToken": f"page-{begin + size}"} if begin + size < len(found) else {}
    return found[begin : begin + size], more


def terminate_instances(cloud: Cloud, call: Call, forward: Forward) -> dict[str, Any]:
    """All or none: one unknown id refuses the call, as in EC2."""
    chosen = [x for x, _ in _select(cloud, call, False)] if call.params.get("InstanceIds") else []
    if not chosen:
        raise refusal("MissingParameter", name="InstanceIds")
    before = [(x, x.state) for x in chosen]
    for machine in chosen:
        cloud.end(machine, m.BY_USER)
    return {
        "TerminatingInstances": [
            {"InstanceId": x.id, "PreviousState": m.state_of(was), "CurrentState": m.state_of(x.state)} for x, was in before
        ]
    }


def describe_spot_price_history(cloud: Cloud, call: Call, forward: Forward) -> dict[str, Any]:
    """Newest first. What held at StartTime counts, too: that is how EC2 shows current prices where StartTime is now."""
    p, now = call.params, cloud.now()
    filters = {f["Name"]: f["Values"] for f in p.get("Filters") or []}
    types = p.get("InstanceTypes") or filters.get("instance-type") or list(instance_types())
    here = offered(call.region)
    zones = [p["AvailabilityZone"]] if p.get("AvailabilityZone") else filters.get("availability-zone") or {z for z, _ in here}
    products = p.get("ProductDescriptions") or filters.get("product-description") or ["Linux/UNIX"]
    rows = []
    if any(x.startswith("Linux/UNIX") for x in products):
        for kind, zone in ((k, z) for k in types for z in zones if (z, k) in here):
            for at, usd in _span(cloud.market.history(zone, kind, now), p.get("StartTime"), p.get("EndTime"), now):
                rows.append((at, zone, kind, usd))
    rows.sort(key=lambda r: (r[0], r[1], r[2]), reverse=True)
    page, more = _page({**p, "MaxResults": p.get("MaxResults") or PAGE_MAX}, rows)
    return {"SpotPriceHistory": [_price(*row) for row in page], **{"NextToken": "", **more}}


def _span(
    history: Sequence[tuple[datetime, Decimal]], start: datetime | None, end: datetime | None, now: datetime
) -> Sequence[tuple[datetime, Decimal]]:
    first, last = _aware(start, now), _aware(end, now)
    held = [h for h in history if h[0] <= (first if start else history[0][0])][-1:] if history else []
    return [*held, *(h for h in history if h not in held and (not start or h[0] > first) and h[0] <= last)]


def _aware(at: datetime | None, otherwise: datetime) -> datetime:
    return otherwise if at is None else at.replace(tzinfo=otherwise.tzinfo) if at.tzinfo is None else at


def _price(at: datetime, zone: str, kind: str, usd: Decimal) -> dict[str, Any]:
    return {
        "AvailabilityZone": zone,
        "InstanceType": kind,
        "ProductDescription": "Linux/UNIX",
        "SpotPrice": f"{usd:.6f}",
        "Timestamp": at,
    }


@functools.cache
def offered(region: str) -> set[tuple[str, str]]:
    """Zones of a region and the types that each has."""
    rows = INSTANCE_TYPE_OFFERINGS.get("availability-zone", {}).get(region, [])
    return {(str(o["Location"]), str(o["InstanceType"])) for o in rows}


def placement_scores(cloud: Cloud, call: Call, forward: Forward) -> dict[str, Any]:
    """The same for each zone, as where SingleAvailabilityZone is asked."""
    rows = [
        {"Region": region, "AvailabilityZoneId": zone.zone_id, "Score": 9}
        for region in call.params.get("RegionNames") or [call.region]
        for zone in ec2_backends[ACCOUNT][region].describe_availability_zones()
    ]
    return {"SpotPlacementScores": rows}


def get_products(cloud: Cloud, call: Call, forward: Forward) -> dict[str, Any]:
    """The price list of EC2 on demand: Linux, shared, no software. Each product is a text of JSON, as AWS has it."""
    wanted = {f["Field"]: f["Value"] for f in call.params.get("Filters") or []}
    kinds = wanted["instanceType"].split(",") if "instanceType" in wanted else sorted(instance_types())
    region = wanted.get("regionCode", "us-east-1")
    if wanted.get("operatingSystem", "Linux") != "Linux" or wanted.get("tenancy", "Shared") != "Shared":
        return {"FormatVersion": "aws_v1", "PriceList": []}
    priced = [(k, usd) for k in kinds if (usd := cloud.market.on_demand_usd(k)) is not None]
    size, begin = int(call.params.get("MaxResults") or 100), int(call.params.get("NextToken") or 0)
    more = {"NextToken": str(begin + size)} if begin + size < len(priced) else {}
    return {"FormatVersion": "aws_v1", "PriceList": [_product(k, region, u) for k, u in priced[begin : begin + size]], **more}


def _product(kind: str, region: str, usd: Decimal) -> str:
    sku = f"SKU{kind.replace('.', '').upper()}"
    attributes = {
        "instanceType": kind,
        "regionCode": region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "operation": "RunInstances",
        "marketoption": "OnDemand",
        "servicecode": "AmazonEC2",
    }
    price = {"USD": f"{usd:.10f}"}
    rate = {"unit": "Hrs", "beginRange": "0", "endRange": "Inf", "pricePerUnit": price, "appliesTo": []}
    prices = {f"{sku}.JRTCKXETXF.6YS6EN2CT7": rate}
    term = {"offerTermCode": "JRTCKXETXF", "sku": sku, "priceDimensions": prices, "termAttributes": {}}
    product = {"productFamily": "Compute Instance", "attributes": attributes, "sku": sku}
    return json.dumps({"product": product, "serviceCode": "AmazonEC2", "terms": {"OnDemand": {f"{sku}.JRTCKXETXF": term}}})


def get_service_quota(cloud: Cloud, call: Call, forward: Forward) -> dict[str, Any]:
    """One of them."""
    code = call.params["QuotaCode"]
    if code not in cloud.market.quotas:
        raise Refused("NoSuchResourceException", f"The quota {code} does not exist.")
    return {"Quota": _quota(code, cloud.market.quotas[code])}


def _quota(code: str, value: float) -> dict[str, Any]:
    return {"ServiceCode": "ec2", "QuotaCode": code, "Value": value, "Unit": "None", "Adjustable": code in QUOTAS}


Handler = Callable[[Cloud, Call, Forward], dict[str, Any]]
HANDLERS: Mapping[tuple[str, str], Handler] = {
    ("ec2", "RunInstances"): run_instances,
    ("ec2", "TerminateInstances"): terminate_instances,
    ("ec2", "DescribeInstances"): describe_instances,
    ("ec2", "DescribeSpotPriceHistory"): describe_spot_price_history,
    ("ec2", "GetSpotPlacementScores"): placement_scores,
    ("pricing", "GetProducts"): get_products,
    ("service-quotas", "GetServiceQuota"): get_service_quota,
}
