"""Money is integer micro-dollars: 1 USD = 1,000,000."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal

MICROS = 1_000_000


def from_usd(text: str | Decimal | int) -> int:
    """Micro-dollars of a decimal amount; raises decimal.InvalidOperation for text that is not a number."""
    return int((Decimal(text) * MICROS).to_integral_value(ROUND_HALF_UP))


def usd(micros: int, rounding: str = ROUND_HALF_EVEN) -> str:
    """An amount for people: four decimals, and two significant digits of one that is smaller. `rounding`: as in decimal."""
    decimals = 4 if micros == 0 or abs(micros) >= 1_000 else 5 if abs(micros) >= 100 else 6
    return f"{(Decimal(micros) / MICROS).quantize(Decimal(1).scaleb(-decimals), rounding):f}"


def for_seconds(usd_micros_per_hour: int, seconds: float) -> int:
    """Price of `seconds` at an hourly price, rounded up: a bill is never smaller than the sum of its parts."""
    exact = Decimal(usd_micros_per_hour) * Decimal(str(seconds)) / 3600
    return int(exact.to_integral_value(ROUND_CEILING))
