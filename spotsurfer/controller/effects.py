"""Pure functions that compute the rows of attempts and jobs after an action. No I/O here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from spotsurfer_wire.messages import Head

from spotsurfer.model.actions import Plan, Recall, Rejected
from spotsurfer.model.job import Attempt, AttemptState, Job, JobState, Wish, launch_token
from spotsurfer.model.machine import GONE, Machine, MachineState, machine_of
from spotsurfer.model.market import Market, Pool
from spotsurfer.model.snapshot import InstanceSeen
from spotsurfer.model.state_machine import ATTEMPT, JOB, MACHINE, OF_ATTEMPT, AttemptEvent, JobEvent, MachineEvent, advance
from spotsurfer.ports.provider import InstanceState, InstanceView
from spotsurfer.store.head_logs import written_at

# The first of these events that an attempt takes is the reason of its end.
SAY_WHY = frozenset(
    {
        AttemptEvent.RESTORE_FAILED,
        AttemptEvent.STORE_FAILED,
        AttemptEvent.RESTORE_REFUSED,
        AttemptEvent.SILENT,
        AttemptEvent.INSTANCE_GONE,
        AttemptEvent.LAUNCH_REFUSED,
        AttemptEvent.TERMINATE_CALLED,
    }
)
# Facts about an attempt that an event settles.
FLAGS: dict[AttemptEvent, dict[str, bool]] = {
    AttemptEvent.RESTORE_FAILED: {"restore_failed": True},
    AttemptEvent.STORE_FAILED: {"store_failed": True},
    AttemptEvent.RESTORE_REFUSED: {"restore_refused": True},
    AttemptEvent.FINAL_SAVED: {"drained": True},
    AttemptEvent.GIVEN_BACK: {"drained": False},
}

ALTERNATIVES = 2  # told beside a choice; `why` has all of them


def passed_over(rejected: Sequence[Rejected]) -> str:
    """The alternatives to a choice with their reasons, in a few words; "" = there was none."""
    told = list(dict.fromkeys(f"{r.what} ({r.why})" for r in rejected))
    more = [f"{len(told) - ALTERNATIVES} more"] if len(told) > ALTERNATIVES else []
    return "; ".join([*told[:ALTERNATIVES], *more])


def planned(plan: Plan, family: str, lease_seconds: float, now: datetime, on: Machine | None = None) -> Attempt:
    """The row of a new attempt; `on`: in the next slot of this machine, else on one that is bought."""
    offer = plan.offer
    return Attempt(
        job=plan.job,
        number=plan.attempt,
        state=AttemptState.PLANNED,
        since=now,
        pool=offer.pool,
        market=offer.market,
        price_usd_micros_per_hour=offer.price_usd_micros_per_hour,
        list_price_usd_micros_per_hour=offer.list_price_usd_micros_per_hour,
        token=launch_token(family, plan.job, plan.attempt) if on is None else on.token,
        slot=0 if on is None else on.slots,
        instance=None if on is None else on.instance,
        planned_at=now,
        purpose=plan.reason,
        for_move=plan.for_move,
        gpus=offer.gpus.count,
        disk_bytes=offer.disk_bytes,
        lease_seconds=lease_seconds,
    )


def bought(plan: Plan, attempt: Attempt, owner: str) -> Machine:
    """The row of the machine that is bought for an attempt."""
    own, offer = machine_of(attempt, MachineState.PLANNED), plan.offer
    return replace(own, owner=owner, cpus=offer.cpus, memory_bytes=offer.memory_bytes, keep_seconds=plan.keep_seconds)


def machine_after(machine: Machine, attempt: Attempt, event: AttemptEvent, now: datetime) -> Machine:
    """The machine after an event of one of its attempts, whose row says already what that means; often the same."""
    means = OF_ATTEMPT.get(event)
    if attempt.slot and event in (AttemptEvent.LAUNCH_ACCEPTED, AttemptEvent.LAUNCH_REFUSED, AttemptEvent.INSTANCE_SEEN):
        return machine  # it was there before
    if means is None or means not in MACHINE[machine.state]:
        return machine
    return machine_moved(machine, means, attempt.reason, now, attempt)


def machine_moved(
    machine: Machine, event: MachineEvent, reason: str, now: datetime, by: Attempt | None = None, at: datetime | None = None
) -> Machine:
    """The machine after one edge of its table; raises IllegalTransition. `by`: an attempt that knows more; `at`: its end."""
    moved = replace(machine, state=advance(MACHINE, machine.state, event), since=now, reason=machine.reason or reason)
    if by is not None:
        moved = replace(moved, instance=by.instance or moved.instance, reclaimed=moved.reclaimed or by.reclaimed)
        moved = replace(moved, public_address=moved.public_address or by.public_address)
        if not by.slot and moved.launched_at is None:
            moved = replace(moved, launched_at=by.launched_at)
        at = by.released_at
    if moved.state in GONE:
        moved = replace(moved, released_at=at or now)
    return replace(moved, reason="") if event in (MachineEvent.ACCEPTED, MachineEvent.SEEN) else moved


UNKNOWN_POOL = Pool("", "", "", "")
UNKNOWN_LEASE_SECONDS = 3600.0  # of a machine that the database lost; few set a longer one, and the agent's report corrects it


def recalled(
    action: Recall, grant: Head, token: str, view: InstanceView | None, lease_seconds: float, now: datetime
) -> Attempt:
    """The row of an attempt that the store knows and the database lost. The price of its machine is lost, too.

    `lease_seconds`: of machines that are ordered now.
    """
    began = written_at(grant, now)
    return Attempt(
        job=action.job,
        number=action.attempt,
        state=AttemptState.RUNNING,
        since=now,
        pool=view.pool if view is not None else UNKNOWN_POOL,
        market=view.market if view is not None else Market.ON_DEMAND,
        price_usd_micros_per_hour=0,
        list_price_usd_micros_per_hour=0,
        token=token,
        slot=1 if action.machine else 0,
        planned_at=began,
        purpose=action.reason,
        instance=view.id if view is not None else None,
        granted_at=began,
        from_checkpoint=grant.checkpoint,
        head_number=grant.number,
        desired_sequence=action.desired_sequence,
        launched_at=view.launched_at if view is not None else None,
        lease_seconds=max(lease_seconds, UNKNOWN_LEASE_SECONDS),
    )


def machine_recalled(attempt: Attempt) -> Machine:
    """The row of a kept machine that the database lost. Its size and its slots are lost, so no job comes to it."""
    return replace(machine_of(attempt), keep_seconds=1.0)


def machine_seen(view: InstanceView) -> InstanceSeen:
    """A machine of the cloud's listing, as decisions see it."""
    gone = view.state is InstanceState.GONE
    public = view.public_address is not None
    return InstanceSeen(view.id, view.token, gone, view.reclaimed, view.launched_at, view.ended_at, view.pool.provider, public)


def after(attempt: Attempt, event: AttemptEvent, reason: str, now: datetime, seen: InstanceSeen | None = None) -> Attempt:
    """The attempt after one edge of its table; raises IllegalTransition."""
    state = advance(ATTEMPT, attempt.state, event)
    moved = replace(attempt, state=state, since=now)
    if event in SAY_WHY:
        moved = replace(moved, reason=moved.reason or reason)
    moved = replace(moved, **FLAGS.get(event, {}))  # type: ignore[arg-type]
    if event is AttemptEvent.EPOCH_GRANTED:
        moved = replace(moved, granted_at=now)
    if state in (AttemptState.RELEASED, AttemptState.REFUSED):
        moved = replace(moved, released_at=(seen.ended_at if seen else None) or now)
    if seen is not None and seen.reclaimed:
        moved = replace(moved, reclaimed=True)
    if seen is not None and seen.public_address:  # ended machines show none any more
        moved = replace(moved, public_address=True)
    if seen is not None and moved.launched_at is None and not moved.slot:
        # The answer to its order was lost, but the machine costs money.
        moved = replace(moved, instance=seen.id, launched_at=seen.launched_at)
    return moved


def job_after(job: Job, event: JobEvent, reason: str, exit_code: int | None, now: datetime) -> Job:
    """The job after one edge of its table; raises IllegalTransition."""
    state = advance(JOB, job.state, event)
    ended = event in (JobEvent.SUCCEEDED, JobEvent.FAILED, JobEvent.CANCELLED)
    if event in (JobEvent.RESUMED, JobEvent.ATTEMPT_PLANNED):  # a wish to hold it keeps its reason
        reason = "" if job.wish is Wish.RUN else job.reason
    return replace(
        job,
        state=state,
        reason=reason,
        exit_code=exit_code if exit_code is not None else job.exit_code,
        ended_at=now if ended else None,
        move=None if ended else job.move,
        stuck_since=job.stuck_since if state is JobState.ACTIVE else None,
    )
