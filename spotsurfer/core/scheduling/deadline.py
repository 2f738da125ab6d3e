"""Jobs with a deadline: the guarantee that the deadline is met, and the choice of what to hold now. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

import numpy as np

from spotsurfer.core.scheduling.placement import barred, cooling, fits, wrong_gpus
from spotsurfer.model.job import HOLDS, WAITS, Attempt, Job, MarketChoice
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.market import Market, Offer, Pool
from spotsurfer.model.snapshot import JobSeen, Limits, Snapshot, SpotSeen
from spotsurfer.ports.policies import (
    Buy,
    Choice,
    Floats,
    Modes,
    Purchase,
    PurchaseMoment,
    Terms,
    View,
)

# ---- The guarantee that a deadline is kept, whatever a policy says
#
# As long as an on-demand machine that is launched one tick later could still finish in time, the policy is free. Past that
# point the job goes on on-demand, or stays on its machine if leaving would cost the time.

T = TypeVar("T")
SLIP = 1e-6  # tolerance for sums of seconds


def kept(want: Modes, moment: PurchaseMoment, terms: Terms) -> Modes:
    """`want` if the deadline can be met after it, else on-demand. Spot that is not available counts as nothing held."""
    want = np.where((want == Buy.SPOT) & (moment.spot_seen == 0), np.int8(Buy.WAIT), want)
    spare = spare_after(want, moment, terms)
    return np.where((want != Buy.ON_DEMAND) & (spare < -SLIP), np.int8(Buy.ON_DEMAND), want).astype(np.int8)


def spare_after(want: Modes, moment: PurchaseMoment, terms: Terms) -> Floats:
    """Seconds to spare if an on-demand machine had to be launched one tick after this choice."""
    left = terms.deadline_seconds - moment.elapsed_seconds - terms.tick_seconds
    work = terms.work_seconds - moment.done_seconds
    owed = np.where(moment.held == Buy.SPOT, moment.owed_seconds, terms.safe_restart_seconds)
    gained = np.where(want == Buy.SPOT, np.maximum(0.0, terms.tick_seconds - owed), 0.0)
    spare: Floats = left - (work - gained) - terms.safe_restart_seconds
    return spare


# ---- The choice: nothing, a spot machine, or an on-demand one
#
# The purchase policy answers from the known facts. `kept` ensures the deadline, and a plain rule replaces a policy that fails
# or answers nonsense. Time is cut into slots, with a length per job; within a slot the answer changes only with what is held.

SLOTS = 400  # in the time until a deadline, at most
SLOT_STEPS = (1.0, 1.25, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0, 6.3, 8.0)
PRICE_STEP, START_STEP = 0.01, 0.05  # prices of spot, as a share of on-demand, and launches, in slots, are rounded to these
START_SECONDS = 300.0  # duration of a launch as long as none was observed
WORST = 3.0  # factor of duration for a launch that goes badly
HOUR = 3600.0
RESERVE_SHARE = 0.1  # of the time to spare, at most, is kept for times when no order is possible
USUAL_SECONDS = 600.0  # between saves, unless set otherwise
MARKETS = {Market.SPOT: Buy.SPOT, Market.ON_DEMAND: Buy.ON_DEMAND}


@dataclass(frozen=True, slots=True)
class Bought:
    """What to hold, why, and the policy's view. `alarm`: the policy failed, and the plain rule answered; "" = it did not."""

    buy: Buy
    why: str
    view: View
    alarm: str = ""
    forced: bool = False  # by the deadline, against the policy


def weighed(snapshot: Snapshot, seen: JobSeen, purchase: Purchase, now: datetime) -> Bought | None:
    """The choice for a job; None if it has no deadline or may not be bought in both markets."""
    view = view_of(snapshot, seen, now)
    if view is None:
        return None
    answer, alarm = asked("purchase", lambda: purchase.choose(view), _sensible)
    choice = plain(view) if answer is None else answer
    moment, promised = _moment(view, seen, snapshot.limits, now), view.terms.deadline_seconds
    # The deadline to keep is a little sooner than the job's, because the cloud's API or the store may be down.
    most = RESERVE_SHARE * max(promised - view.terms.work_seconds, 0.0)
    terms = replace(view.terms, deadline_seconds=promised - min(snapshot.limits.deadline_reserve_seconds, most))
    want = np.array([choice.buy], dtype=np.int8)
    spare = float(spare_after(want, moment, terms)[0])
    buy = Buy(int(kept(want, moment, terms)[0]))
    if buy is Buy.ON_DEMAND and choice.buy is not buy:
        why = (
            f"the deadline would be at risk ({spare / HOUR:.1f} h to spare after another slot): on-demand, whatever costs least"
        )
        return Bought(buy, why, view, alarm, forced=True)
    return Bought(buy, choice.why, view, alarm)


def asked(kind: str, ask: Callable[[], T], sensible: Callable[[object], bool]) -> tuple[T | None, str]:
    """The answer of a policy of this kind, or None with an alarm if it fails or answers nonsense."""
    try:
        answer = ask()
    except Exception as e:  # a policy is third-party code: no exception of it may stop the fleet
        return None, f"the {kind} policy failed: {type(e).__name__}: {e}"
    return (answer, "") if sensible(answer) else (None, f"the {kind} policy answered nonsense: {answer!r:.80}")


def _sensible(choice: object) -> bool:
    return isinstance(getattr(choice, "buy", None), Buy) and isinstance(getattr(choice, "why", None), str)


def plain(view: View) -> Choice:
    """The rule that takes over: stay on spot, or take it if it may be available, else wait as long as the deadline allows."""
    gone = bool(view.spot_seen) and view.spot_seen[-1] is False
    return Choice(Buy.WAIT if gone else Buy.SPOT, "the plain rule: spot as long as the deadline allows")


def view_of(snapshot: Snapshot, seen: JobSeen, now: datetime) -> View | None:
    """The view for a purchase policy; None if the job has no deadline, or not both markets are open to it."""
    spec = seen.job.spec
    if spec.deadline_seconds is None or spec.work_seconds is None or spec.market is not MarketChoice.SPOT_FIRST:
        return None
    offers = [
        o
        for o in snapshot.offers
        if fits(seen.job, o) and not wrong_gpus(seen.image_gpus, o.gpus) and barred(seen.job, o, snapshot.limits) is None
    ]
    prices = {m: min((o.price_usd_micros_per_hour for o in offers if o.market is m), default=None) for m in Market}
    spot, on_demand = prices[Market.SPOT], prices[Market.ON_DEMAND]
    if spot is None or on_demand is None:
        return None
    slot = slot_seconds(spec.deadline_seconds)
    own = any(a.granted_at is not None for a in seen.attempts)
    start, worst = launches(seen.attempts if own else [a for s in snapshot.jobs for a in s.attempts])
    start = START_STEP * slot * math.ceil(start / (START_STEP * slot))
    ratio = max(PRICE_STEP, PRICE_STEP * round(spot / on_demand / PRICE_STEP)) if on_demand else 1.0
    terms = Terms(slot, spec.work_seconds, spec.deadline_seconds, start, ratio * on_demand / 1e6, on_demand / 1e6, worst)
    number = int((now - seen.job.submitted_at).total_seconds() // slot)
    held, owed = _held(seen, start, now)
    done = slot * (done_seconds(seen, slot) // slot)  # in whole slots, so that the answer changes with them
    pools = {o.pool for o in offers if o.market is Market.SPOT}
    past = slots({p: s for p, s in snapshot.spot_seen.items() if p in pools}, seen.job, slot, number + 1, now)
    free = _free_now(snapshot, seen, offers, now)
    return View(terms, number * slot, done, held, owed, (*past[:-1], free))


def done_seconds(seen: JobSeen, slot: float) -> float:
    """Work done, by its user's estimate; a job that still runs always has a twentieth, or a slot, left."""
    work = seen.job.spec.work_seconds or 0.0
    return min(seen.done_seconds, work - min(slot, 0.05 * work))


def slot_seconds(deadline_seconds: float) -> float:
    """Seconds between two decisions of a purchase policy; one of few lengths, so that results for one job serve another."""
    wanted = max(1.0, deadline_seconds / SLOTS)
    power = 10.0 ** math.floor(math.log10(wanted))
    return next(step * power for step in (*SLOT_STEPS, 10.0) if step * power >= wanted * (1 - 1e-9))


def launches(attempts: Sequence[Attempt]) -> tuple[float, float]:
    """Seconds from an order to a machine that can take the job: usually, and if it goes badly."""
    taken = [(a.granted_at - a.planned_at).total_seconds() for a in attempts if a.granted_at is not None]
    usual = float(np.median(taken)) if taken else START_SECONDS
    return usual, max([WORST * usual, *taken])


def slots(
    signs: Mapping[Pool, Sequence[SpotSeen]], job: Job, slot: float, count: int, now: datetime
) -> tuple[bool | None, ...]:
    """Whether spot was available in each slot since the job was submitted: by the slot's newest sign of the best pool."""
    best: list[bool | None] = [None] * count
    for some in signs.values():
        one: list[bool | None] = [None] * count
        for i, sign in enumerate(some):
            end = some[i + 1].at if i + 1 < len(some) else now
            if sign.up is None or end < job.submitted_at:
                continue
            first = max(0, int((sign.at - job.submitted_at) / timedelta(seconds=slot)))
            last = min(count - 1, int((end - job.submitted_at) / timedelta(seconds=slot)))
            one[first : last + 1] = [sign.up] * (last + 1 - first)
        best = [a if b is None else bool(a) or b for a, b in zip(best, one, strict=True)]
    return tuple(best)


def _free_now(snapshot: Snapshot, seen: JobSeen, offers: Sequence[Offer], now: datetime) -> bool | None:
    """True while a spot machine is held, False if every pool is cooling down or reclaims its machine, None = try it."""
    if any(a.market is Market.SPOT and a.state is A.RUNNING and not _leaves(seen, a) for a in seen.attempts):
        return True
    spot = [o for o in offers if o.market is Market.SPOT]
    return None if any(cooling(o, snapshot.cooldowns, now) is None for o in spot) else False


def _leaves(seen: JobSeen, attempt: Attempt) -> bool:
    agent = seen.agents.get(attempt.number)
    return agent is not None and agent.notice_id is not None


def _held(seen: JobSeen, start: float, now: datetime) -> tuple[Buy, float]:
    """What is held or ordered, and the seconds until the job goes on there."""
    for states in (HOLDS, WAITS):
        for a in seen.attempts:
            if a.state in states and not (states is HOLDS and _leaves(seen, a)):
                age = (now - a.planned_at).total_seconds()
                return MARKETS[a.market], 0.0 if a.state in HOLDS else max(start - age, 0.0)
    return Buy.WAIT, 0.0


def at_risk(view: View, seen: JobSeen, limits: Limits) -> float:
    """Seconds of work that may have to be repeated: a spot machine may go without notice. A job that goes back to spot must be
    able to afford that until its first save there, or it would move to and fro."""
    if view.held is Buy.ON_DEMAND:
        paces = [a.pace_seconds for a in seen.attempts if a.pace_seconds is not None]
        last = paces[-1] if paces else USUAL_SECONDS
        interval = seen.job.spec.checkpoint_interval_seconds or limits.checkpoint_seconds or last
        return min(interval, view.terms.work_seconds - view.done_seconds)
    return seen.at_risk_seconds if view.held is Buy.SPOT else 0.0


def _moment(view: View, seen: JobSeen, limits: Limits, now: datetime) -> PurchaseMoment:
    """The moment for the rule that keeps deadlines, at the true time and with only the work that can't be lost any more."""
    done = done_seconds(seen, view.terms.tick_seconds) - at_risk(view, seen, limits)
    free = view.spot_seen[-1] if view.spot_seen else None
    return PurchaseMoment(
        (now - seen.job.submitted_at).total_seconds(),
        np.array([max(done, 0.0)]),
        np.array([view.held], dtype=np.int8),
        np.array([view.owed_seconds]),
        np.array([-1 if free is None else int(free)], dtype=np.int8),
    )
