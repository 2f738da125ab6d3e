"""What the ledger would bill for the machines of a virtual run: by its own rule, the same as for real ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import numpy as np

from spotsurfer.ledger.billing import charge
from spotsurfer.model.ids import AttemptNumber, JobId
from spotsurfer.model.job import Attempt, AttemptState
from spotsurfer.model.market import Market, Pool
from spotsurfer.ports.provider import BillingRule
from spotsurfer.ports.purchase import Buy
from spotsurfer.sim.zones import Journey, Machine, Zones

AWS = BillingRule(minimum_seconds=60.0, reclaimed_first_hour_free=True)
EPOCH = datetime(2020, 1, 1, tzinfo=UTC)


def billed_usd(journey: Journey, zones: Zones, tick_seconds: float, start: int, rule: BillingRule = AWS) -> float:
    """All machines of a run, and the moves of its state."""
    total = sum(_of(m, zones, tick_seconds, start, rule) for m in journey.machines)
    places = [m.pool for m in journey.machines]
    return total + zones.move_usd * sum(a != b for a, b in pairwise(places))


def _of(machine: Machine, zones: Zones, tick_seconds: float, start: int, rule: BillingRule) -> float:
    spot = machine.buy is Buy.SPOT
    rows = np.arange(start + machine.begin, start + machine.end)
    usd = zones.spot[rows, machine.pool] if spot else np.full(len(rows), zones.on_demand[machine.pool])
    micros = np.round(usd * 1e6).astype(np.int64)
    changes = [0, *(np.flatnonzero(np.diff(micros)) + 1).tolist()]
    launched = EPOCH + timedelta(seconds=machine.begin * tick_seconds)
    ended = EPOCH + timedelta(seconds=machine.end * tick_seconds)
    steps = [(launched + timedelta(seconds=i * tick_seconds), int(micros[i])) for i in changes]
    name = zones.pools[machine.pool]
    attempt = Attempt(
        JobId("run"),
        AttemptNumber(1),
        AttemptState.RELEASED,
        ended,
        Pool("trace", name, name, "machine"),
        Market.SPOT if spot else Market.ON_DEMAND,
        int(micros[0]),
        round(float(zones.on_demand[machine.pool]) * 1e6),
        "",
        launched,
        launched_at=launched,
        released_at=ended,
        reclaimed=machine.reclaimed,
    )
    return charge(attempt, steps[1:], rule, ended, machine.reclaimed).usd_micros / 1e6
