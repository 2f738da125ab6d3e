"""The table of prices: what each machine type costs in each region, and of which day the prices are."""

from __future__ import annotations

import csv
import datetime
import functools
import gzip
import io
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from importlib import resources
from pathlib import Path
from types import MappingProxyType

from spotsurfer.model.errors import ConfigError
from spotsurfer.model.money import MICROS, from_usd

COLUMNS = ("machine_type", "region", "ondemand_usd_per_hour", "spot_usd_per_hour", "date")
Prices = Mapping[tuple[str, str], tuple[int, int | None]]


@dataclass(frozen=True, slots=True)
class PriceTable:
    """`prices`: by region and machine type the standard and the spot price in micro-dollars an hour; no spot price: None."""

    prices: Prices
    date: datetime.date  # of the oldest row


@functools.cache
def shipped() -> PriceTable:
    """The table of this package. Its origin: README.md beside it."""
    return _table(resources.files("spotsurfer_providers.catalog").joinpath("google_prices.csv.gz").read_bytes())


def read(path: Path) -> PriceTable:
    """An operator's own table, as `write` makes it. Raises ConfigError."""
    try:
        return _table(path.read_bytes())
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, KeyError, ValueError, TypeError, InvalidOperation) as e:
        how = "`python -m spotsurfer_providers.price_import` makes one"
        raise ConfigError(f"[provider.gcp] prices: {path} is no table of prices ({type(e).__name__}: {e}): {how}.") from e


def _table(packed: bytes) -> PriceTable:
    rows = list(csv.DictReader(io.StringIO(gzip.decompress(packed).decode())))
    prices = {(r["region"], r["machine_type"]): (_usd(r[COLUMNS[2]]), _usd(r[COLUMNS[3]]) or None) for r in rows}
    date = min((r["date"] for r in rows), default="")
    return PriceTable(MappingProxyType(prices), datetime.date.fromisoformat(date))


def _usd(text: str) -> int:
    return from_usd(Decimal(text or 0))


def write(path: Path, table: PriceTable) -> None:
    """Replaces the file whole, or leaves it as it is. Raises OSError."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(COLUMNS)
    for (region, kind), (standard, spot) in sorted(table.prices.items(), key=lambda p: (p[0][1], p[0][0])):
        lines.writerow((kind, region, _text(standard), "" if spot is None else _text(spot), table.date.isoformat()))
    half = path.with_name(f".{path.name}.half")
    half.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))
    half.replace(path)


def _text(micros: int) -> str:
    return f"{Decimal(micros) / MICROS:f}"
