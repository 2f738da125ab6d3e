"""Bills of clouds as they export them: AWS's CUR 2.0, FOCUS, and Google's detailed billing export.

A format is known by its columns, a file's kind (CSV, Parquet, JSON lines, each as it is or compressed with gzip) by its first
bytes. Sources: AWS's "Cost and Usage Report 2.0" dictionary, FOCUS 1.2, Google's "Structure of Detailed data export".
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from pathlib import Path
from typing import Any

from spotsurfer.model.errors import InputMissing, UsageError

Row = Mapping[str, Any]
AMOUNT_MAX, YEARS = Decimal(10) ** 15, (2000, 2200)  # more is no bill


class Charged(StrEnum):
    """For what a line of a bill is, as far as it matters here."""

    MACHINE = "machine"
    DISK = "disk"
    ADDRESS = "address"
    TRANSFER = "transfer"
    STORE = "store"
    OTHER = "other"
    TAX = "tax"
    CREDIT = "credit"
    FEE = "fee"


@dataclass(frozen=True, slots=True)
class BillLine:
    """A line of a cloud's bill."""

    what: Charged
    begins: datetime
    ends: datetime
    usd: Decimal
    resource: str = ""
    seconds: float | None = None  # of a machine; None = the bill does not say
    tags: Mapping[str, str] = field(default_factory=dict)  # names in small letters, with _ for all but letters and digits
    description: str = ""
    final: bool = False  # of a closed month
    period: tuple[datetime, datetime] | None = None  # of the whole bill


def read(path: Path) -> list[BillLine]:
    """The lines of a file. Raises InputMissing with what is wrong, UsageError without pyarrow."""
    try:
        rows = list(_rows(path))
    except OSError as e:
        raise InputMissing(f"Bill {path} can't be read: {e.strerror or e}.") from e
    except (ValueError, csv.Error, EOFError) as e:
        raise InputMissing(f"Bill {path} is no CSV, Parquet or JSON lines: {e}.") from e
    if not rows:
        raise InputMissing(f"Bill {path} has no lines: name the file that the cloud exported.")
    columns = set(rows[0])
    take = next((take for needed, take in FORMATS if needed <= columns), None)
    if take is None:
        some = ", ".join(sorted(map(str, columns))[:5])
        raise InputMissing(
            f"Bill {path} has columns like {some}: expected those of AWS's CUR 2.0 (line_item_unblended_cost …), of FOCUS"
            " (BilledCost, ChargePeriodStart …), or of Google's detailed export (cost, usage_start_time …)."
        )
    found: list[BillLine] = []
    for number, row in enumerate(rows, 2):
        try:
            found += take(row)
        except (KeyError, ValueError, TypeError, AttributeError, InvalidOperation) as e:
            said = f"{type(e).__name__}: {e}" if not isinstance(e, ValueError) else str(e)
            raise InputMissing(f"Bill {path}, line {number}: {said}.") from e
    return found


def _rows(path: Path) -> Iterator[Row]:
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    if data[:4] == b"PAR1":
        try:
            from pyarrow import parquet
        except ImportError:
            raise UsageError("Parquet needs pyarrow: pip install 'spotsurfer[parquet]', or export CSV.") from None
        yield from parquet.read_table(io.BytesIO(data)).to_pylist()
        return
    text = data.decode("utf-8-sig")
    if text.lstrip().startswith("{"):
        for line in text.splitlines():
            if line.strip():
                yield json.loads(line)
        return
    for row in csv.DictReader(io.StringIO(text), strict=True):
        if None in row or None in row.values():
            raise ValueError("a line has more or fewer cells than the first one")
        yield row


# ---- CUR 2.0

CUR_USAGE = frozenset({"Usage", "DiscountedUsage", "SavingsPlanCoveredUsage"})
CUR_CREDITS = frozenset({"Credit", "Refund", "SavingsPlanNegation", "EdpDiscount", "PrivateRateDiscount", "BundledDiscount"})
CUR_KINDS = (  # a part of line_item_usage_type, and for what the line is; the first one counts
    *(("BoxUsage", Charged.MACHINE), ("SpotUsage", Charged.MACHINE), ("EBS:", Charged.DISK), ("PublicIPv4", Charged.ADDRESS)),
    *(("DataTransfer", Charged.TRANSFER), ("AWS-In-Bytes", Charged.TRANSFER), ("AWS-Out-Bytes", Charged.TRANSFER)),
    *(("Requests-", Charged.STORE), ("TimedStorage", Charged.STORE)),
)


def _cur(row: Row) -> Iterator[BillLine]:
    kind, usage = row["line_item_line_item_type"], row.get("line_item_usage_type") or ""
    _need_usd(row.get("line_item_currency_code"))
    what = next((found for part, found in CUR_KINDS if part in usage), Charged.OTHER)
    if kind not in CUR_USAGE:
        what = Charged.TAX if kind == "Tax" else Charged.CREDIT if kind in CUR_CREDITS else Charged.FEE
    in_hours = str(row.get("pricing_unit") or "").lower() in ("hrs", "hours") or what is Charged.MACHINE
    first, last = row.get("bill_billing_period_start_date"), row.get("bill_billing_period_end_date")
    yield BillLine(
        what,
        _time(row["line_item_usage_start_date"]),
        _time(row["line_item_usage_end_date"]),
        _amount(row["line_item_unblended_cost"]),
        row.get("line_item_resource_id") or "",
        float(_amount(row["line_item_usage_amount"])) * 3600 if in_hours and what is Charged.MACHINE else None,
        _tags(row.get("resource_tags")),
        row.get("line_item_line_item_description") or usage or kind,
        final=bool(row.get("bill_invoice_id")),
        period=(_time(first), _time(last)) if first and last else None,
    )


# ---- FOCUS

FOCUS_CATEGORIES = {"Tax": Charged.TAX, "Credit": Charged.CREDIT, "Purchase": Charged.FEE, "Adjustment": Charged.CREDIT}
FOCUS_SERVICES = {"Compute": Charged.MACHINE, "Networking": Charged.TRANSFER}


def _focus(row: Row) -> Iterator[BillLine]:
    _need_usd(row.get("BillingCurrency"))
    text = " ".join(str(row.get(name) or "") for name in ("ResourceType", "ServiceName", "ChargeDescription", "SkuId"))
    what = FOCUS_CATEGORIES.get(row["ChargeCategory"]) or _by_words(text, FOCUS_SERVICES.get(row.get("ServiceCategory") or ""))
    unit = str(row.get("PricingUnit") or row.get("ConsumedUnit") or "").lower()
    quantity = row.get("PricingQuantity") if row.get("PricingUnit") else row.get("ConsumedQuantity")
    hours = what is Charged.MACHINE and unit in ("hours", "hrs", "hour") and quantity not in (None, "")
    first, last = row.get("BillingPeriodStart"), row.get("BillingPeriodEnd")
    yield BillLine(
        what,
        _time(row["ChargePeriodStart"]),
        _time(row["ChargePeriodEnd"]),
        _amount(row["BilledCost"]),
        row.get("ResourceId") or "",
        float(_amount(quantity)) * 3600 if hours else None,
        _tags(row.get("Tags")),
        row.get("ChargeDescription") or "",
        final=bool(row.get("InvoiceId")),
        period=(_time(first), _time(last)) if first and last else None,
    )


WORDS = (  # in texts of FOCUS and Google, in small letters; the first one counts
    *(("persistent disk", Charged.DISK), ("disk", Charged.DISK), ("hyperdisk", Charged.DISK), ("pd capacity", Charged.DISK)),
    *(("volume", Charged.DISK), ("snapshot", Charged.DISK), ("ebs:", Charged.DISK), ("external ip", Charged.ADDRESS)),
    *(("ip address", Charged.ADDRESS), ("ipv4", Charged.ADDRESS), ("transfer", Charged.TRANSFER), ("egress", Charged.TRANSFER)),
    *(("cloud storage", Charged.STORE), ("store", Charged.STORE), ("bucket", Charged.STORE), ("s3", Charged.STORE)),
    *((" core", Charged.MACHINE), (" ram", Charged.MACHINE), ("gpu", Charged.MACHINE), ("instance", Charged.MACHINE)),
)


def _by_words(text: str, otherwise: Charged | None) -> Charged:
    small = text.lower()
    return next((what for word, what in WORDS if word in small), otherwise or Charged.OTHER)


# ---- Google

GOOGLE_COSTS = {"tax": Charged.TAX, "adjustment": Charged.CREDIT, "rounding_error": Charged.FEE}


def _google(row: Row) -> Iterator[BillLine]:
    _need_usd(row.get("currency"))
    service, sku = str(_at(row, "service.description") or ""), str(_at(row, "sku.description") or "")
    what = GOOGLE_COSTS.get(row.get("cost_type") or "") or _by_words(f"{service} {sku}", None)
    resource = str(_at(row, "resource.name") or "").rsplit("/", 1)[-1]
    times = _time(row["usage_start_time"]), _time(row["usage_end_time"])
    labels = _tags(row.get("labels"))
    yield BillLine(what, *times, _amount(row["cost"]), resource, None, labels, sku or service)
    credits = row.get("credits") or []
    for credit in json.loads(credits) if isinstance(credits, str) else credits:
        name = str(credit.get("name") or "credit")
        yield BillLine(Charged.CREDIT, *times, _amount(credit["amount"]), resource, None, labels, name)


def _at(row: Row, path: str) -> object:
    """A nested value, or the same flattened with a point or a line between the names, as people select it for CSV."""
    outer, _, inner = path.partition(".")
    nested = row.get(outer)
    if isinstance(nested, Mapping):
        return nested.get(inner)
    return row.get(path) or row.get(f"{outer}_{inner}")


# ---- Values


def _need_usd(currency: object) -> None:
    if currency not in (None, "", "USD"):
        raise ValueError(f"the bill is in {currency}, and the ledger in USD: export it in USD")


def _amount(value: object) -> Decimal:
    if value in (None, ""):
        return Decimal(0)
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        raise ValueError(f"{value!r} is no number") from None
    if not amount.is_finite() or abs(amount) > AMOUNT_MAX:
        raise ValueError(f"{value!r} is no number that a bill can have")
    return amount


def _time(value: object) -> datetime:
    if not isinstance(value, datetime):
        try:
            value = datetime.fromisoformat(str(value).strip().replace(" UTC", "+00:00"))
        except ValueError:
            raise ValueError(f"{value!r} is no time like 2026-11-01T00:00:00Z") from None
    if not YEARS[0] <= value.year < YEARS[1]:
        raise ValueError(f"{value} is no time that a bill can have")
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC)


def _tags(value: object) -> dict[str, str]:
    """Tags of a mapping, a list of pairs or of {key, value}, or JSON of these, under names that all clouds can write."""
    if value in (None, ""):
        return {}
    if isinstance(value, str):
        value = json.loads(value)
    if isinstance(value, Mapping):
        pairs: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, list):
        pairs = [(x["key"], x["value"]) if isinstance(x, Mapping) else tuple(x) for x in value]
    else:
        raise ValueError(f"{value!r} are no tags")
    return {_name(str(key)): str(text) for key, text in pairs}


def _name(key: str) -> str:
    small = "".join(c if c.isalnum() else "_" for c in key.lower())
    return small.removeprefix("user_")


FORMATS: tuple[tuple[frozenset[str], Callable[[Row], Iterator[BillLine]]], ...] = (
    (frozenset({"line_item_line_item_type", "line_item_unblended_cost", "line_item_usage_start_date"}), _cur),
    (frozenset({"BilledCost", "ChargeCategory", "ChargePeriodStart", "ChargePeriodEnd"}), _focus),
    (frozenset({"cost", "usage_start_time", "usage_end_time"}), _google),
)
