"""Money is integer micro-dollars: 1 USD = 1,000,000."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_HALF_UP, Decimal

MICROS = 1_000_000


def from_usd(text: str | Decimal | int) -> int:
    """Micro-dollars of a decimal amount; raises decimal.InvalidOperation for text that is not a number."""
    return int((Decimal(text) * MICROS).to_integral_value(ROUND_HALF_UP))


def usd(micros: int) -> str:
    """An amount for people, four decimals: the smallest machine costs 0.0001 USD in some minutes."""
    return f"{Decimal(micros) / MICROS:.4f}"


def for_seconds(usd_micros_per_hour: int, seconds: float) -> int:
    """Price of `seconds` at an hourly price, rounded up: a bill is never smaller than the sum of its parts."""
    exact = Decimal(usd_micros_per_hour) * Decimal(str(seconds)) / 3600
    return int(exact.to_integral_value(ROUND_CEILING))
