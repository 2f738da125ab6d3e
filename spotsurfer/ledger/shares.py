"""Who pays for a machine that several attempts lived on. Pure.

A machine is billed once. Its bill is cut where an attempt comes or leaves and at midnight (UTC). Those who are there at a time
share a piece by the processors that they asked for; time when nobody is there belongs to the one that left last. Each share is
rounded as a part of the machine's running total, so attempts add up to the machine's bill. A piece of the past never changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from math import ceil

from spotsurfer.ledger.charge import DAY, MICROSECOND, Charge, Part, day_of
from spotsurfer.model.charges import Stay


def share(whole: Charge, own: Stay, stays: Sequence[Stay]) -> Charge:
    """What `own` pays of a machine's charge. `stays`: of all that were there with it, or later, itself included."""
    parts: list[Part] = []
    due = due_on_demand = Fraction(0)
    for part in whole.parts:
        for piece in _cut(part, stays):
            if piece.begins >= own.begins:
                parts += _of_piece(piece, own, stays, due, due_on_demand)
            due, due_on_demand = due + piece.micros, due_on_demand + piece.micros_on_demand
    return replace(whole, parts=parts)


def _of_piece(piece: Part, own: Stay, stays: Sequence[Stay], due: Fraction, due_on_demand: Fraction) -> list[Part]:
    there = sorted(s for s in stays if s.there(piece.begins)) or [_last(stays, piece.begins)]
    if own not in there:
        return []
    total, before = sum(s.weight for s in there), sum(s.weight for s in there if s < own)
    low, high = Fraction(before, total), Fraction(before + own.weight, total)
    micros, on_demand = (
        Fraction(ceil(so_far + amount * high) - ceil(so_far + amount * low))
        for so_far, amount in ((due, piece.micros), (due_on_demand, piece.micros_on_demand))
    )
    return [replace(piece, quantity=piece.quantity * (high - low), micros=micros, micros_on_demand=on_demand)]


def _last(stays: Sequence[Stay], at: datetime) -> Stay:
    """Who left last; before anybody came, who came first."""
    left = [(s.ends, s) for s in stays if s.ends is not None and s.ends <= at]
    return max(left)[1] if left else min(stays)


def _cut(part: Part, stays: Sequence[Stay]) -> list[Part]:
    """The part in pieces during which nobody comes or leaves, each of one day."""
    inside = {at for s in stays for at in (s.begins, s.ends) if at is not None and part.begins < at < part.ends}
    midnight = day_of(part.begins) + DAY
    while midnight < part.ends:
        inside.add(midnight)
        midnight += DAY
    if not inside:
        return [part]
    ends = [*sorted(inside), part.ends]
    whole = (part.ends - part.begins) // MICROSECOND
    pieces = []
    for begins, end in zip([part.begins, *ends[:-1]], ends, strict=True):
        s = Fraction((end - begins) // MICROSECOND, whole)
        amounts = (part.quantity * s, part.micros * s, part.micros_on_demand * s)
        pieces.append(Part(part.kind, begins, end, *amounts))
    return pieces
