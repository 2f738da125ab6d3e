"""Who gives way to whom where there is no room for all: the cheapest of lower priority to suspend. Pure, on plain values.

Theory of operation. Claims (jobs without a machine that want one) are served in the order of their level, the oldest first.
One that has room, or will have it once the machines that are leaving have left, only waits. For one that has none, seats (jobs
with a machine) of a lower level are suspended, those that cost least first, and only where that makes enough room: nobody is
suspended in vain. A seat that gives way already comes first, so a decision stands from look to look until it is done, but it
is called back when the room is not needed any more.

Jobs of the same priority do not suspend each other, however long one waits: they come one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from spotsurfer.core.room import Use, lacking, together
from spotsurfer.model.ids import JobId
from spotsurfer.model.snapshot import Limits


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that wants a machine and has none. `since`: when it was submitted."""

    job: JobId
    priority: int
    level: int
    since: datetime
    use: Use


@dataclass(frozen=True, slots=True)
class Seat:
    """A job with machines that are not leaving. `kept`: why it may not be suspended; "" = it may."""

    job: JobId
    priority: int
    level: int
    use: Use
    cost_seconds: float = 0.0  # that it would stand still for its final save
    young: bool = False  # it began less than a minimum stay ago
    giving: bool = False  # it is being suspended
    kept: str = ""


def in_order(claims: Sequence[Claim]) -> list[Claim]:
    """Who is served first."""
    return sorted(claims, key=lambda c: (-c.level, c.since, c.job))


def giving_way(claims: Sequence[Claim], seats: Sequence[Seat], others: Use, limits: Limits) -> dict[JobId, Claim]:
    """Jobs to be suspended, each with the claim that it gives way to. `others`: machines that nobody can be asked for."""
    left = list(seats)
    used = others + together(s.use for s in seats)
    found: dict[JobId, Claim] = {}
    for claim in in_order(claims):
        chosen = _chosen(claim, left, used, limits)
        if chosen is None:  # who comes after it may not take what it waits for
            used += claim.use
            continue
        found |= {s.job: claim for s in chosen}
        left = [s for s in left if s not in chosen]
        used = _without(used, chosen) + claim.use
    return found


def yields(seat: Seat, claim: Claim) -> bool:
    """Whether this one may be suspended for that one."""
    return not seat.kept and seat.level < claim.level and seat.priority != claim.priority


def _chosen(claim: Claim, seats: Sequence[Seat], used: Use, limits: Limits) -> list[Seat] | None:
    """The seats that make room for it, none where there is room; None where all together would not be enough."""
    chosen: list[Seat] = []
    for seat in sorted((s for s in seats if yields(s, claim)), key=_price):
        if lacking(_without(used, chosen), claim.use, limits) is None:
            break
        chosen.append(seat)
    if lacking(_without(used, chosen), claim.use, limits) is not None:
        return None
    for seat in reversed(chosen):  # the dear ones may have made the cheap ones unnecessary
        fewer = [s for s in chosen if s is not seat]
        if lacking(_without(used, fewer), claim.use, limits) is None:
            chosen = fewer
    return chosen


def _price(seat: Seat) -> tuple[bool, bool, float, int, str]:
    return (not seat.giving, seat.young, seat.cost_seconds, seat.level, seat.job)


def _without(used: Use, seats: Sequence[Seat]) -> Use:
    gone = together(s.use for s in seats)
    return Use(used.machines - gone.machines, used.gpus - gone.gpus, used.usd_micros_per_hour - gone.usd_micros_per_hour)
