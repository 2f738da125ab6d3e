"""When a job needs another machine, and which: back-off, guarded policies, the launch itself. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from spotsurfer.common.backoff import backoff_seconds
from spotsurfer.core.facts.attempt_view import AttemptView, holder_of, wanted
from spotsurfer.core.facts.ownership import late, refusing, tried_since
from spotsurfer.core.facts.pool_evidence import evidence, with_evidence
from spotsurfer.core.facts.shared_writers import rivals
from spotsurfer.core.scheduling import capacity as hard
from spotsurfer.core.scheduling import preemption
from spotsurfer.core.scheduling.budgets import Purse
from spotsurfer.core.scheduling.deadline import MARKETS, Bought, weighed
from spotsurfer.core.scheduling.interval import Paced, paced
from spotsurfer.core.scheduling.licences import Licences
from spotsurfer.core.scheduling.machines import Fleet, keep_seconds, offer_of
from spotsurfer.core.scheduling.placement import GIB, choose, fits, serves, wrong_gpus
from spotsurfer.core.scheduling.relocation import cheaper_but_far, with_relocation
from spotsurfer.core.scheduling.rightsizing import SIZED, of_size
from spotsurfer.model.actions import Action, Plan, Preview, Rejected, SetWish
from spotsurfer.model.job import HOLDS, OVER, WAITS, Attempt, AttemptNumber, Job, JobId, JobState, Wish
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.market import Market, Offer
from spotsurfer.model.snapshot import JobSeen, MachineSeen, Snapshot
from spotsurfer.ports.policies import Buy, Interval, PauseSeen, Policy, Purchase

# ---- Back-off: a job that crashes its own machines waits longer for each next one, and is held in the end
#
# Each of these machines costs money.

FIRST_SECONDS = 30.0  # after the second machine in a row; doubled with each further one
MOST_SECONDS = 1800.0


def setbacks(own: Sequence[AttemptView]) -> list[AttemptView]:
    """The newest consecutive machines that had the job and ended without one checkpoint, newest first.

    Machines that the cloud reclaimed, or that left for another reason, don't count: they say nothing about the job. Failed
    restores and starts are counted elsewhere.
    """
    found: list[AttemptView] = []
    for c in reversed(own):
        a = c.attempt
        if a.granted_at is None or not (a.state in OVER or a.state in (A.LOST, A.RELEASING) or c.gone):
            continue
        worked = c.head is not None and a.number in c.head.worked  # it made a checkpoint there, or its command ended by itself
        if worked or not tried_since(c.seen.job, a):
            break
        taken = a.reclaimed or c.noticed or (c.instance is not None and c.instance.reclaimed)
        if not (taken or a.drained or a.gave_way_to or a.restore_failed or a.restore_refused or a.store_failed):
            found.append(c)
    return found


def not_before(own: Sequence[AttemptView]) -> datetime | None:
    """When the job may have its next machine; None = now."""
    found = setbacks(own)
    if len(found) < 2:
        return None
    wait = backoff_seconds(len(found) - 1, FIRST_SECONDS, MOST_SECONDS)
    newest = found[0]
    return (newest.now if newest.state in HOLDS else newest.attempt.since) + timedelta(seconds=wait)


def backoff_reason(own: Sequence[AttemptView]) -> str:
    """The reason for the back-off, in half a sentence."""
    found = setbacks(own)
    return f"{len(found)} machines in a row ended under the job before it was saved; the last: {found[0].attempt.reason}"


# ---- Guarded policy: a plain rule replaces a placement policy's exceptions and wrong answers, with an alarm


class Trusted:
    """Asks another policy and checks its answers. `alarms` are collected until they are reported."""

    def __init__(self, inner: Policy) -> None:
        self._inner = inner
        self.alarms: list[str] = []

    def rank(self, job: Job, offers: Sequence[Offer], now: datetime) -> Sequence[Offer]:
        """Its ranking, if that holds only given offers, each once; else spot first, then by price."""
        try:
            ranked = list(self._inner.rank(job, offers, now))
            theirs = {id(o) for o in ranked}
            # Our own policies return the very same objects: that avoids comparing thousands.
            if len(theirs) == len(ranked) and theirs <= {id(o) for o in offers}:
                return ranked
            if all(isinstance(o, Offer) for o in ranked) and not Counter(ranked) - Counter(offers):
                return ranked
            self._alarm("the policy ranked offers that there are not")
        except Exception as e:  # third-party code: no exception of it may stop the fleet
            self._alarm(f"the policy failed to rank offers: {type(e).__name__}: {e}")
        return sorted(offers, key=lambda o: (o.market is not Market.SPOT, o.cost_usd_micros_per_hour, o.pool))

    def worth_moving(self, job: Job, here: Attempt, there: Offer, now: datetime, pause: PauseSeen) -> str | None:
        """Its reason, if that is a sentence or None; else the job stays."""
        try:
            why = self._inner.worth_moving(job, here, there, now, pause)
        except Exception as e:
            self._alarm(f"the policy failed to judge a move: {type(e).__name__}: {e}")
            return None
        if why is None or isinstance(why, str):
            return why
        self._alarm(f"the policy gave no reason for a move but {why!r:.80}")
        return None

    def _alarm(self, alarm: str) -> None:
        if alarm not in self.alarms:
            self.alarms.append(alarm)


NEEDED = "the job needs a machine"
NOTICED = "the cloud gave notice on the present machine"
DRAINED = "the present machine has drained by itself"
GONE = "the present machine is gone"
FAILED = "its command failed and is tried again"
PRESSED = "its memory was about to end on the present machine"
MOVE = "its user asked for a move"
DOUBTED = "a new machine shows whether the store takes reports"
ADVISED = "the cloud advises to leave the present machine"
PARTIAL = "the cloud's listing is not complete: nothing is launched on a partial view"
NO_MACHINE = "no machine is on offer now that fits and may be tried"


class Planner:
    """Plans of one decision: what was planned for earlier jobs counts against the limits of later ones."""

    def __init__(
        self,
        snapshot: Snapshot,
        policy: Policy,
        now: datetime,
        purchase: Purchase | None = None,
        interval: Interval | None = None,
    ) -> None:
        self.snapshot, self._policy, self.now = snapshot, Trusted(policy), now
        self._purchase, self._interval = purchase, interval
        self._known = evidence(snapshot, now)
        self._offers = with_evidence(snapshot, self._known)
        self._alarms: list[str] = []
        self.bought: dict[JobId, Bought | None] = {}
        self._planned: list[Offer] = []
        self.purse = Purse(snapshot)
        self.fleet = Fleet(snapshot, now)
        self._chosen: dict[JobId, tuple[Sequence[Offer], Sequence[tuple[Offer, str]]]] = {}
        self._reserved: list[Offer] = []  # of jobs that wait for room: later jobs don't take it
        self.rejected: list[Rejected] = []
        self.notes: dict[JobId, str] = {}
        self.licences = Licences(snapshot, now)
        thirsty = frozenset(s.job.id for s in snapshot.jobs if preemption.claims(s) and self.licences.lacks(s.job) is not None)
        self.rivals = rivals(snapshot.jobs)
        self.contest = preemption.held(snapshot, self._next, now, thirsty)

    def reject(self, job: JobId, what: str, why: str) -> None:
        """Remember an alternative that was not taken."""
        self.rejected.append(Rejected(job, what, why))
        self.notes.setdefault(job, why)

    def note(self, job: JobId, why: str) -> None:
        """Remember why a job waits."""
        self.notes[job] = why

    def needed(self, waiter: AttemptView, holder: AttemptView) -> bool:
        """Whether the holder should leave for this waiter: for a user's or a policy's move, as long as its reason stands."""
        move = waiter.seen.job.move
        if waiter.attempt.for_move:
            return move is not None and move.number == waiter.attempt.for_move
        if waiter.attempt.purpose in (NEEDED, NOTICED, DRAINED, GONE, FAILED, PRESSED) or _can_tell(waiter):
            return False
        if waiter.attempt.purpose == ADVISED:
            return holder.advised
        if holder.attempt.state is A.DRAINING:
            return True  # a policy's move that has begun is not questioned again; a failed save ends it
        if holder.unsaved:
            return False
        if waiter.attempt.purpose.startswith(SIZED):
            size = waiter.seen.size  # once wished for it is kept as long as it holds the job
            return size is not None and waiter.attempt.pool.instance_type in size.holds
        bought = self._weighed(waiter.seen)
        if bought is not None:
            return waiter.attempt.market is not holder.attempt.market and MARKETS[waiter.attempt.market] is bought.buy
        a, spec = waiter.attempt, waiter.seen.job.spec
        # Its own terms as an offer: the policy judges the machine as it was bought.
        prices = (a.price_usd_micros_per_hour, a.list_price_usd_micros_per_hour)
        offer = Offer(a.pool, a.market, *prices, spec.cpus, spec.memory_bytes)
        return self._policy.worth_moving(waiter.seen.job, holder.attempt, offer, self.now, pause_of(holder)) is not None

    def unwanted(self, seen: JobSeen, own: Sequence[AttemptView]) -> frozenset[int]:
        """Waiters that are too small or too slow, or without a reason any more: the holder is well and no move is on."""
        holder, waiters = holder_of(own), [c for c in own if c.attempt.state in WAITS]
        # A near miss showed since that it needs more memory, or it must go on from a checkpoint of a time when it used more.
        floor = max(seen.memory_floor_bytes, seen.size.room_bytes if seen.size is not None else 0)
        if small := frozenset(c.attempt.number for c in waiters if self._has_less(c, floor)):
            return small
        if holder is None:
            if seen.job.id in self.licences.overbooked:
                return frozenset(c.attempt.number for c in waiters)
            bought = self._weighed(seen) if own else None
            forced = bought is not None and bought.forced and any(o.market is Market.ON_DEMAND for o in self._ranked(seen))
            return frozenset(c.attempt.number for c in waiters if forced and c.attempt.market is Market.SPOT)
        if self._leaving(holder) is not None:
            return frozenset()
        return frozenset(c.attempt.number for c in waiters if not (self.needed(c, holder) or (_can_tell(c) and holder.quiet)))

    def waits(self, holder: AttemptView) -> str | None:
        """Why the job should leave its on-demand machine and wait for spot, or None. One that drains is not called back."""
        bought = self._weighed(holder.seen)
        if bought is None or bought.buy is not Buy.WAIT or holder.unsaved or holder.attempt.market is not Market.ON_DEMAND:
            return None
        return bought.why if holder.attempt.state in (A.RUNNING, A.DRAINING) else None

    def may_be_outgrown(self, waiter: AttemptView) -> bool:
        """Whether the final save may exceed its memory; the next report will give the save's size."""
        size = waiter.seen.size
        return size is not None and self._has_less(waiter, size.awaits_bytes)

    def _has_less(self, waiter: AttemptView, floor: int) -> bool:
        """Whether it has less memory; False for a type that is no longer on offer, because its memory is unknown."""
        kind = waiter.attempt.pool.instance_type
        return floor > 0 and any(o.pool.instance_type == kind and o.memory_bytes < floor for o in self.snapshot.offers)

    def plan(self, seen: JobSeen, own: Sequence[AttemptView]) -> Action | None:
        """A new attempt, or None; the reason for None is noted."""
        job = seen.job
        if not wanted(seen) or job.state not in (JobState.QUEUED, JobState.ACTIVE) or seen.head is None:
            return None
        if (way := self.contest.ways.get(job.id)) is not None:
            self.note(job.id, way.why)
            return None
        waiter = next((c for c in own if c.attempt.state in WAITS), None)
        if waiter is not None:
            if waiter.agent is not None and waiter.agent.waits:
                self.note(job.id, f"attempt {waiter.attempt.number} gets ready: {waiter.agent.waits}")
            return None
        if (why := self._not_now(job, own)) is not None:
            self.note(job.id, why)
            return None
        holder = holder_of(own)
        purpose = NEEDED if holder is None else self._leaving(holder)
        if purpose is None and self.snapshot.doubt is not None and self.snapshot.doubt.asks == job.id:
            purpose = DOUBTED
        if purpose is not None:
            return self._best(seen, own, purpose)
        if job.move is not None:
            return self._for_move(seen, own)
        return None if holder is None else self._worth(seen, own, holder)

    def _not_now(self, job: Job, own: Sequence[AttemptView]) -> str | None:
        """Why the job gets no machine now, whatever is on offer; None = it may get one."""
        if not any(self.snapshot.listings.values()):
            return PARTIAL
        if (lack := self.licences.lacks(job)) is not None:
            self.licences.wait(job)
            return lack
        holder = holder_of(own)
        after = not_before(own) if holder is None or holder.gone else None
        if after is None or self.now >= after:
            return None
        return f"{backoff_reason(own)}; the next one comes in {(after - self.now).total_seconds():.0f} s"

    def _leaving(self, holder: AttemptView) -> str | None:
        """Why the holder will be gone in any case."""
        if holder.noticed:
            return NOTICED
        if holder.owns_final:
            return DRAINED
        if holder.gone:
            return FAILED if holder.over_by_head else GONE
        return PRESSED if holder.agent is not None and holder.agent.pressed else None

    def _best(self, seen: JobSeen, own: Sequence[AttemptView], purpose: str) -> Action | None:
        ranked, bought = self._ranked(seen), self._weighed(seen)
        if bought is not None:
            if bought.buy is Buy.WAIT:
                self.reject(seen.job.id, "a machine now", bought.why)
                return None
            ranked, purpose = _as_bought(ranked, bought), f"{purpose}; {bought.why}"
        if (kept := self.fleet.choose(seen, ranked)) is not None:
            return self._take(seen, own, offer_of(kept.machine), purpose, kept=kept)
        if ranked:
            return self._take(seen, own, ranked[0], purpose)
        there = ((o, wrong_gpus(seen.image_gpus, o.gpus)) for o in self._offers if fits(seen.job, o))
        gpus = (f"{o.pool.instance_type}: {why}" for o, why in there if why)
        why = next(filter(None, (*refusing(seen, self.snapshot.limits, self.now).values(), *gpus)), "")
        most, floor = max((o.memory_bytes for o in self.snapshot.offers), default=0), seen.memory_floor_bytes
        text = NO_MACHINE
        if why:
            text = f"no machine on offer could go on with its checkpoint: {why}"
        elif most < floor:
            larger = f"it waits for one with {floor / GIB:.1f} GiB; the largest on offer has {most / GIB:.1f}"
            text = f"its memory ended, or was about to, on a smaller machine, so {larger}"
        self.note(seen.job.id, text)
        return None

    def _next(self, seen: JobSeen) -> Offer | None:
        """The offer to buy for a job that has no machine, or None."""
        if self.licences.lacks(seen.job) is not None:
            return None
        ranked, _ = self._choices(seen)
        if any(self.snapshot.listed_at(o.pool.provider) is not None for o in self._offers):  # else none is, and all is on hold
            unseen = self._unseen(ranked)
            ranked = [o for o in ranked if o.pool.provider not in unseen]
        bought = self._weighed(seen) if ranked else None
        if bought is not None:
            ranked = [] if bought.buy is Buy.WAIT else _as_bought(ranked, bought)
        return ranked[0] if ranked and self.purse.lacks(seen.job, ranked[0]) is None else None

    def _for_move(self, seen: JobSeen, own: Sequence[AttemptView]) -> Action | None:
        move = seen.job.move
        assert move is not None
        if any(c.attempt.for_move == move.number for c in own):
            return None  # its machine was tried already: the move is about to be settled
        ranked = [o for o in self._ranked(seen) if serves(move, o)]
        if not ranked:
            what = move.instance_type or "another machine"
            return SetWish(seen.job.id, None, f"the move failed: no offer for {what} fits the job now", clear_move=True)
        return self._take(seen, own, ranked[0], MOVE, move.number)

    def _worth(self, seen: JobSeen, own: Sequence[AttemptView], holder: AttemptView) -> Action | None:
        """A move that pays: to another size, to the other market because of a deadline, or as the policy says."""
        here, job = holder.attempt, seen.job.id
        if here.state is not A.RUNNING or (holder.agent and holder.agent.frozen):
            return None
        if holder.unsaved:
            return None  # a move would cost all its work: only its user or the cloud may cause that
        lately = late(seen, self.snapshot.limits, self.now)
        gave_up = [a for a in lately if (a.store_failed and a.granted_at is None) or a.restore_failed]
        if gave_up:  # the next machine would fail alike
            self.reject(job, "a cheaper machine", gave_up[-1].reason)
            return None
        if holder.advised:
            elsewhere = (o for o in self._ranked(seen) if (o.pool, o.market) != (here.pool, here.market))
            return next((self._take(seen, own, o, ADVISED) for o in elsewhere), None)
        if seen.size is not None and seen.size.wanted:
            offer = of_size(seen.size, here.market, self._ranked(seen))
            if offer is not None:
                return self._take(seen, own, offer, f"{SIZED}: {seen.size.why}")
            self.reject(job, f"to {seen.size.kind}", "it is not on offer now at the expected price")
        if (bought := self._weighed(seen)) is not None:
            return self._for_price(seen, own, here.market, bought)
        for offer in self._ranked(seen):
            why = self._policy.worth_moving(seen.job, here, offer, self.now, pause_of(holder))
            if why is not None:
                return self._take(seen, own, offer, why)
        return None

    def _for_price(self, seen: JobSeen, own: Sequence[AttemptView], here: Market, bought: Bought) -> Action | None:
        """A move to the other market, if that costs less in the end or the deadline requires it."""
        if bought.buy is Buy.WAIT or MARKETS[here] is bought.buy:
            self.reject(seen.job.id, "another market", bought.why)
            return None
        offer = next((o for o in self._ranked(seen) if MARKETS[o.market] is bought.buy), None)
        return None if offer is None else self._take(seen, own, offer, bought.why)

    def _weighed(self, seen: JobSeen) -> Bought | None:
        """The purchase policy's choice, asked once per decision."""
        if self._purchase is None:
            return None
        if seen.job.id not in self.bought:
            self.bought[seen.job.id] = weighed(self.snapshot, seen, self._purchase, self.now)
        return self.bought[seen.job.id]

    def pace(self, case: AttemptView) -> Paced | None:
        """The interval between saves from now on; None if the policy is not due."""
        found = None if self._interval is None else paced(case, self._interval, self._offers, self._known)
        if found is not None and found.alarm:
            self._alarms.append(found.alarm)
        return found

    def alarms(self) -> tuple[str, ...]:
        """The errors of policies in this decision."""
        told = [b.alarm for b in self.bought.values() if b is not None and b.alarm]
        told += [s.size.alarm for s in self.snapshot.jobs if s.size is not None and s.size.alarm]
        return tuple(dict.fromkeys([*self._policy.alarms, *told, *self._alarms]))

    def _ranked(self, seen: JobSeen) -> Sequence[Offer]:
        ranked, passed = self._choices(seen)
        for offer, why in passed:
            self.rejected.append(Rejected(seen.job.id, f"{offer.market} {offer.pool}", why))
        unseen = self._unseen(ranked)
        self.rejected += [Rejected(seen.job.id, provider, PARTIAL) for provider in sorted(unseen)]
        return [o for o in ranked if o.pool.provider not in unseen] if unseen else ranked

    def _unseen(self, offers: Sequence[Offer]) -> frozenset[str]:
        """Those of these clouds that can't be listed now: nothing is ordered there."""
        return frozenset(name for name in {o.pool.provider for o in offers} if self.snapshot.listed_at(name) is None)

    def _choices(self, seen: JobSeen) -> tuple[Sequence[Offer], Sequence[tuple[Offer, str]]]:
        """The job's possible offers, best first, and the rejected ones with reasons; asked once per decision."""
        if seen.job.id not in self._chosen:
            s = self.snapshot
            offers = with_relocation(seen, self._offers, s)
            ranked, passed = choose(seen, offers, s.cooldowns, self._policy, self.now, s.limits)
            passed = [(o, why) for o, why in passed if fits(seen.job, o)]  # an offer that is too small stays so
            passed += cheaper_but_far(ranked)
            refused = refusing(seen, s.limits, self.now)
            passed += [
                (o, f"could not go on with the job: {refused[t]}") for o in ranked if (t := o.pool.instance_type) in refused
            ]
            self._chosen[seen.job.id] = [o for o in ranked if o.pool.instance_type not in refused], passed
        return self._chosen[seen.job.id]

    def _take(
        self,
        seen: JobSeen,
        own: Sequence[AttemptView],
        offer: Offer,
        purpose: str,
        move: int = 0,
        kept: MachineSeen | None = None,
    ) -> Action | None:
        """Plan an attempt on a machine of this offer that is bought, or on `kept`, which is one; None = it can't be had now."""
        job, holder = seen.job.id, holder_of(own)
        if kept is None and self._has_no_room(seen, holder, offer):
            return None
        money = hard.no_money_left(self.snapshot, seen, offer, self._planned)
        if money is not None:
            self.reject(job, f"{offer.market} {offer.pool}", money)
            if holder is None:
                return SetWish(job, Wish.HOLD, f"{money} and resume")
            return SetWish(job, None, f"the move failed, the job runs on: {money}", clear_move=True) if move else None
        if (money := self.purse.lacks(seen.job, offer)) is not None:  # its next period brings more: the job just waits
            self.reject(job, f"{offer.market} {offer.pool}", money)
            return (
                SetWish(job, None, f"the move failed, the job runs on: {money}", clear_move=True) if move and holder else None
            )
        self.purse.take(seen.job, offer)
        self.licences.plan(seen.job)
        known = [seen.head.epoch if seen.head is not None else 0, *(c.attempt.number for c in own), *seen.desired_heard]
        number = AttemptNumber(max(known) + 1)  # never a used one: its machine and its fencing would be confused
        if kept is not None:
            self.fleet.take(kept, seen)
            return Plan(job, number, offer, purpose, move, kept.machine.token)
        self._planned.append(offer)
        return Plan(job, number, offer, purpose, move, keep_seconds=keep_seconds(seen.job, offer, self.snapshot.limits))

    def _has_no_room(self, seen: JobSeen, holder: AttemptView | None, offer: Offer) -> bool:
        """Whether the limits leave no room for this machine; then the job waits its turn, and why is noted."""
        job = seen.job.id
        full = hard.no_room_left(self.snapshot, seen, offer, [*self._planned, *self._reserved], self.contest.ways)
        if full is None:
            return False
        if holder is None:
            self._reserved.append(offer)
        for victim in (v for v, way in self.contest.ways.items() if way.to == job):
            full = f"{victim} of lower priority is suspended for it: {full}"
        if (other := preemption.suspended_for(seen.attempts)) and job not in self.notes:
            full = f"suspended for {other} of higher priority, it comes back by itself when there is room: {full}"
        self.reject(job, f"{offer.market} {offer.pool}", full)
        return True


def _as_bought(ranked: Sequence[Offer], bought: Bought) -> Sequence[Offer]:
    """The offers of the chosen market. If it has none, the other market is no worse than nothing, but the job never waits in
    vain for spot."""
    return [o for o in ranked if MARKETS[o.market] is bought.buy] or ranked


def _can_tell(waiter: AttemptView) -> bool:
    """Whether it was ordered because of a doubt: no holder is drained for it, and it stays as long as the holder is quiet."""
    return waiter.attempt.purpose.startswith(DOUBTED)


def pause_of(holder: AttemptView) -> PauseSeen:
    """The known facts about how long a move stops this job."""
    fit = holder.agent.fit if holder.agent is not None else None
    past = tuple(a.pause_seconds for a in holder.seen.attempts if a.pause_seconds is not None)
    return PauseSeen(None if fit is None else max(fit.durable_seconds - fit.gain_seconds, 0.0), past)


def preview(job: Job, snapshot: Snapshot, policy: Policy, now: datetime) -> Preview:
    """A dry run: the launches for a job that is not submitted yet, in order, and why no other offers."""
    seen, offers = JobSeen(job, ()), with_evidence(snapshot, evidence(snapshot, now))
    choices, rejected = choose(seen, offers, snapshot.cooldowns, policy, now, snapshot.limits)
    if not any(snapshot.listings.values()):
        obstacle = PARTIAL
    elif not choices:
        obstacle = NO_MACHINE
    else:
        full = Licences(snapshot, now).lacks(job) or hard.no_room_left(snapshot, seen, choices[0], ())
        obstacle = full or hard.no_money_left(snapshot, seen, choices[0], ()) or Purse(snapshot).lacks(job, choices[0]) or ""
    return Preview(list(choices), rejected, obstacle)
