"""A charge: parts, each with an exact amount that is spread evenly over its time, and the lines that they make. Pure.

What was due by the end of a day is rounded up, and a day's line is the difference to the day before. So lines add up to the
rounded total, however they are divided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import groupby
from math import ceil

from spotsurfer.model.charges import ChargeKind, ChargeLine

DAY = timedelta(days=1)
MICROSECOND = timedelta(microseconds=1)


def day_of(moment: datetime) -> datetime:
    """The beginning of its UTC day."""
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a charge at one price. Micro-dollars, exact."""

    kind: ChargeKind
    begins: datetime
    ends: datetime
    quantity: Fraction
    micros: Fraction
    micros_on_demand: Fraction


@dataclass(frozen=True, slots=True)
class Charge:
    """One thing that is paid for: what all its lines say, and its parts, oldest first."""

    says: ChargeLine  # of it only who, where and what
    parts: Sequence[Part]

    @property
    def exact_micros(self) -> Fraction:
        """All of it, micro-dollars."""
        return sum((p.micros for p in self.parts), Fraction(0))

    @property
    def usd_micros(self) -> int:
        """All of it, rounded up once."""
        return ceil(self.exact_micros)

    @property
    def usd_micros_on_demand(self) -> int:
        """The same at on-demand list prices."""
        return ceil(sum((p.micros_on_demand for p in self.parts), Fraction(0)))

    def lines(self, end_of_day: Callable[[datetime], datetime] = lambda moment: day_of(moment) + DAY) -> Iterator[ChargeLine]:
        """One for each kind and day, oldest first. `end_of_day`: when the day of a moment is over, by default in UTC."""
        due, due_on_demand, billed, billed_on_demand = Fraction(0), Fraction(0), 0, 0
        pieces = (piece for part in self.parts for piece in _by_days(part, end_of_day))
        for (kind, _), day in groupby(pieces, key=lambda p: (p.kind, end_of_day(p.begins))):
            some = list(day)
            due += sum(p.micros for p in some)
            due_on_demand += sum(p.micros_on_demand for p in some)
            yield replace(
                self.says,
                kind=kind,
                begins=some[0].begins,
                ends=some[-1].ends,
                quantity=float(sum(p.quantity for p in some)),
                usd_micros=ceil(due) - billed,
                usd_micros_on_demand=ceil(due_on_demand) - billed_on_demand,
            )
            billed, billed_on_demand = ceil(due), ceil(due_on_demand)


def _by_days(part: Part, end_of_day: Callable[[datetime], datetime]) -> Iterator[Part]:
    whole = (part.ends - part.begins) // MICROSECOND
    begins = part.begins
    while (midnight := end_of_day(begins)) < part.ends:
        yield _share(part, begins, midnight, whole)
        begins = midnight
    yield part if begins == part.begins else _share(part, begins, part.ends, whole)


def _share(part: Part, begins: datetime, ends: datetime, whole: int) -> Part:
    share = Fraction((ends - begins) // MICROSECOND, whole)
    return Part(part.kind, begins, ends, part.quantity * share, part.micros * share, part.micros_on_demand * share)
