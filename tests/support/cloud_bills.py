"""Bills as clouds export them, made from the lines of a ledger: CUR 2.0, and Google's detailed export."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from spotsurfer.model.charges import ChargeKind, ChargeLine
from spotsurfer.model.market import Market

HOUR = timedelta(hours=1)
MONTH = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)
CUR_COLUMNS = (
    *("identity_line_item_id", "bill_invoice_id", "bill_billing_period_start_date", "bill_billing_period_end_date"),
    *("line_item_usage_account_id", "line_item_line_item_type", "line_item_usage_start_date", "line_item_usage_end_date"),
    *("line_item_product_code", "line_item_usage_type", "line_item_operation", "line_item_availability_zone"),
    *("line_item_resource_id", "line_item_usage_amount", "line_item_currency_code", "line_item_unblended_rate"),
    *("line_item_unblended_cost", "line_item_line_item_description", "pricing_unit", "resource_tags"),
)


def text_of(at: datetime) -> str:
    """A time as AWS writes it."""
    return f"{at:%Y-%m-%dT%H:%M:%S}.000Z"


def cur_row(kind: str, begins: datetime, ends: datetime, cost: float, **more: object) -> dict[str, Any]:
    """A line of CUR 2.0."""
    usual = {
        "bill_billing_period_start_date": text_of(MONTH[0]),
        "bill_billing_period_end_date": text_of(MONTH[1]),
        "line_item_usage_account_id": "123456789012",
        "line_item_line_item_type": kind,
        "line_item_usage_start_date": text_of(begins),
        "line_item_usage_end_date": text_of(ends),
        "line_item_product_code": "AmazonEC2",
        "line_item_currency_code": "USD",
        "line_item_unblended_cost": f"{cost:.10f}",
        "line_item_usage_amount": "0",
        "resource_tags": "{}",
    }
    return {**dict.fromkeys(CUR_COLUMNS, ""), **usual, **more}


def cur(lines: Sequence[ChargeLine]) -> list[dict[str, Any]]:
    """What AWS would bill for these machines: a line for each machine and clock hour."""
    return [row for x in lines if x.kind in (ChargeKind.MACHINE, ChargeKind.MINIMUM) for row in _hourly(x)]


def hours_of(begins: datetime, ends: datetime) -> Iterator[tuple[datetime, float]]:
    """Clock hours with the share of each that lies between two moments."""
    hour = begins.replace(minute=0, second=0, microsecond=0)
    while hour < ends:
        yield hour, (min(ends, hour + HOUR) - max(begins, hour)) / HOUR
        hour += HOUR


def _hourly(x: ChargeLine) -> Iterator[dict[str, Any]]:
    rate = x.usd_micros / 1e6 / (x.quantity / 3600) if x.quantity else 0.0
    bought = "SpotUsage" if x.market is Market.SPOT else "BoxUsage"
    tags = {"user_spotsurfer_job": str(x.job), "user_spotsurfer_attempt": str(x.attempt), "user_spotsurfer_family": "family"}
    for hour, share in hours_of(x.begins, x.begins + timedelta(seconds=x.quantity)):
        yield cur_row(
            "Usage",
            hour,
            hour + HOUR,
            rate * share,
            line_item_usage_type=f"USE2-{bought}:{x.instance_type}",
            line_item_operation="RunInstances",
            line_item_availability_zone=x.zone,
            line_item_resource_id=x.resource,
            line_item_usage_amount=f"{share:.10f}",
            line_item_unblended_rate=f"{rate:.10f}",
            pricing_unit="Hrs",
            resource_tags=json.dumps(tags),
        )


def write_cur(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """As CSV."""
    text = io.StringIO()
    table = csv.DictWriter(text, CUR_COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    path.write_text(text.getvalue())


def write_cur_parquet(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """As Parquet: numbers, times and tags have types of their own."""
    import pyarrow as pa
    from pyarrow import parquet

    def typed(name: str, value: str) -> object:
        if name.endswith("_date"):
            return datetime.fromisoformat(value).replace(tzinfo=None)
        if name in ("line_item_usage_amount", "line_item_unblended_cost"):
            return float(value)
        return sorted(json.loads(value).items()) if name == "resource_tags" else value

    types = {"resource_tags": pa.map_(pa.string(), pa.string())}
    dates = {name: pa.timestamp("ms") for name in CUR_COLUMNS if name.endswith("_date")}
    numbers = dict.fromkeys(("line_item_usage_amount", "line_item_unblended_cost"), pa.float64())
    schema = pa.schema([(name, {**types, **dates, **numbers}.get(name, pa.string())) for name in CUR_COLUMNS])
    found = [{name: typed(name, value) for name, value in row.items()} for row in rows]
    parquet.write_table(pa.Table.from_pylist(found, schema), path)


def google(lines: Sequence[ChargeLine]) -> list[dict[str, Any]]:
    """What Google would bill: processors and memory of each machine and clock hour apart, and a credit in one of the rows."""
    found = []
    for x in lines:
        rate = x.usd_micros / 1e6 / (x.quantity / 3600)
        for hour, share in hours_of(x.begins, x.begins + timedelta(seconds=x.quantity)):
            for sku, part in (("Spot Preemptible N2 Instance Core", 0.7), ("Spot Preemptible N2 Instance Ram", 0.3)):
                found.append(
                    {
                        "service": {"id": "6F81", "description": "Compute Engine"},
                        "sku": {"id": "1", "description": f"{sku} running in Americas"},
                        "usage_start_time": f"{hour:%Y-%m-%d %H:%M:%S} UTC",
                        "usage_end_time": f"{hour + HOUR:%Y-%m-%d %H:%M:%S} UTC",
                        "labels": [
                            {"key": "spotsurfer-job", "value": str(x.job)},
                            {"key": "spotsurfer-attempt", "value": str(x.attempt)},
                        ],
                        "resource": {"name": f"projects/p/instances/{x.resource}"},
                        "cost": rate * share * part,
                        "currency": "USD",
                        "cost_type": "regular",
                        "credits": [],
                    }
                )
    return found
