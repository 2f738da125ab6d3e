"""Units as people write them: durations, sizes, amounts. Only this module parses and prints them.

Every parser raises ValueError with the second half of a sentence ("has the unit 'x', expected …"); the caller adds the
name of the key in front.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation

from spotsurfer.model.money import from_usd

DURATION_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
SIZE_UNITS = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}  # binary: 1K = 1KiB = 1024 bytes
DURATION_EXAMPLES = 'a number of seconds or a text like "90s", "10m", "6h", "2d"'
SIZE_EXAMPLES = 'a text with a unit, like "500M" or "4G" (binary: 1G = 1GiB = 1,073,741,824 bytes)'
USD_EXAMPLES = 'an amount in US dollars without a sign, like "25" or "0.50"'
SECONDS_MAX = 10 * 366 * 86400
BYTES_MAX = 1 << 60
USD_MAX = Decimal(1_000_000_000)

_DURATION = re.compile(r"(\d+(?:\.\d+)?)([a-z]*)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def parse_seconds(value: object) -> float:
    """Seconds of a duration: 90, 1.5, "90s", "10m", "1h30m", "2d". Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"is {_kind(value)}, expected {DURATION_EXAMPLES}")
    seconds = float(value) if isinstance(value, int | float) else _duration_text(value)
    if not 0 <= seconds <= SECONDS_MAX:  # also refuses NaN
        raise ValueError(f"is {value!r}, expected a duration between 0 and ten years")
    return seconds


def _duration_text(text: str) -> float:
    rest = text.strip().lower().replace(" ", "")
    total, at = 0.0, 0
    while match := _DURATION.match(rest, at):
        number, unit = match.groups()
        if not unit and (at or match.end() != len(rest)):
            break
        if unit and unit not in DURATION_UNITS:
            raise ValueError(f"is {text!r}: {unit!r} is no unit of time, expected {DURATION_EXAMPLES}")
        total += float(number) * DURATION_UNITS.get(unit, 1)
        at = match.end()
    if not rest or at != len(rest):
        raise ValueError(f"is {text!r}, expected {DURATION_EXAMPLES}")
    return total


def parse_bytes(value: object) -> int:
    """Bytes of a size with its unit: "4G", "4GiB", "500M", "1.5T"; binary units. Raises ValueError.

    A bare number is refused: 4 could mean bytes or gibibytes.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"is {_kind(value)}, expected {SIZE_EXAMPLES}")
    match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(f"is {value!r}, expected {SIZE_EXAMPLES}")
    number, unit = match.groups()
    if not unit:
        raise ValueError(f"is {value!r} without a unit, expected {SIZE_EXAMPLES}")
    short = re.fullmatch(r"([KMGT])(?:i?B)?|B", unit.upper().replace("IB", "iB"))
    if short is None:
        raise ValueError(f"is {value!r}: {unit!r} is no unit of size, expected {SIZE_EXAMPLES}")
    size = int(Decimal(number) * SIZE_UNITS[short.group(0)[0]])
    if size > BYTES_MAX:
        raise ValueError(f"is {value!r}, which is more than any machine has")
    return size


def parse_usd(value: object) -> int:
    """Micro-dollars of a decimal amount in US dollars: "25", "0.50", 3, 2.5. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"is {_kind(value)}, expected {USD_EXAMPLES}")
    try:
        amount = Decimal(str(value).strip())
    except InvalidOperation:
        raise ValueError(f"is {value!r}, expected {USD_EXAMPLES}") from None
    if not amount.is_finite() or not 0 <= amount <= USD_MAX:
        raise ValueError(f"is {value!r}, expected {USD_EXAMPLES}")
    return from_usd(amount)


def duration(seconds: float) -> str:
    """A duration for people: "0.39s", "42s", "12m05s", "3h20m", "6d04h"."""
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 10:
        return f"{seconds:.2f}".rstrip("0").rstrip(".") + "s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def size(count: int) -> str:
    """A size for people in binary units: "512 B", "1.5 GiB"."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{int(value)} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def counted(number: int, thing: str) -> str:
    """So many things, for people: "1 job", "2 jobs"."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in short: "1-4,7". Steps are written out."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _kind(value: object) -> str:
    if value is None:
        return "nothing"
    return {"bool": "true/false", "list": "a list", "dict": "a table"}.get(type(value).__name__, type(value).__name__)
