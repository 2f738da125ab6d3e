"""What the ledger would bill for the machines of a virtual run: by its own rule, the same as for real ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np

from spotsurfer.ledger.billing import charge
from spotsurfer.model.ids import AttemptNumber, JobId
from spotsurfer.model.job import Attempt, AttemptState
from spotsurfer.model.market import Market, Pool
from spotsurfer.ports.provider import BillingRule
from spotsurfer.ports.purchase import Buy
from spotsurfer.ports.size import Kind
from spotsurfer.sim.sizing import Held, Ride
from spotsurfer.sim.zones import Journey, Machine, Zones

AWS = BillingRule(minimum_seconds=60.0, reclaimed_first_hour_free=True)
MICROS = 1e6
EPOCH = datetime(2020, 1, 1, tzinfo=UTC)


def billed_usd(journey: Journey, zones: Zones, tick_seconds: float, start: int, rule: BillingRule = AWS) -> float:
    """All machines of a run, and the moves of its state."""
    total = sum(_of(m, zones, tick_seconds, start, rule) for m in journey.machines)
    places = [m.pool for m in journey.machines]
    return total + zones.move_usd * sum(a != b for a, b in pairwise(places))


def machines_usd(ride: Ride, kinds: Sequence[Kind], rule: BillingRule = AWS) -> float:
    """All machines of a run whose size changed."""
    return sum(_machine(stay, kinds[stay.kind], rule) for stay in ride.held)


def _machine(stay: Held, kind: Kind, rule: BillingRule) -> float:
    micros = round(kind.usd_per_hour * MICROS)
    life = Life(kind.name, Market.SPOT, micros, stay.begin, stay.end, stay.reclaimed)
    return _charged(life, [(stay.begin, micros)], rule)


def _of(machine: Machine, zones: Zones, tick_seconds: float, start: int, rule: BillingRule) -> float:
    spot = machine.buy is Buy.SPOT
    rows = np.arange(start + machine.begin, start + machine.end)
    usd = zones.spot[rows, machine.pool] if spot else np.full(len(rows), zones.on_demand[machine.pool])
    micros = np.round(usd * MICROS).astype(np.int64)
    changes = [0, *(np.flatnonzero(np.diff(micros)) + 1).tolist()]
    begin, end = machine.begin * tick_seconds, machine.end * tick_seconds
    on_demand = round(float(zones.on_demand[machine.pool]) * MICROS)
    market = Market.SPOT if spot else Market.ON_DEMAND
    life = Life(zones.pools[machine.pool], market, on_demand, begin, end, machine.reclaimed)
    return _charged(life, [(begin + i * tick_seconds, int(micros[i])) for i in changes], rule)


@dataclass(frozen=True, slots=True)
class Life:
    """One machine. Seconds since the run began; micro-dollars an hour."""

    name: str
    market: Market
    on_demand_usd_micros: int
    begin: float
    end: float
    reclaimed: bool


def _charged(life: Life, prices: Sequence[tuple[float, int]], rule: BillingRule) -> float:
    """`prices`: from when on, in seconds, and micro-dollars an hour."""
    launched, ended = EPOCH + timedelta(seconds=life.begin), EPOCH + timedelta(seconds=life.end)
    steps = [(EPOCH + timedelta(seconds=at), usd) for at, usd in prices]
    attempt = Attempt(
        JobId("run"),
        AttemptNumber(1),
        AttemptState.RELEASED,
        ended,
        Pool("trace", life.name, life.name, "machine"),
        life.market,
        steps[0][1],
        life.on_demand_usd_micros,
        "",
        launched,
        launched_at=launched,
        released_at=ended,
        reclaimed=life.reclaimed,
    )
    return charge(attempt, steps[1:], rule, ended, life.reclaimed).usd_micros / MICROS
