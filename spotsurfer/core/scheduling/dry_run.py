"""A dry run: the launches for a job that is not submitted yet, in order, and why no other offers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from spotsurfer.core.facts.pool_evidence import evidence, told
from spotsurfer.core.scheduling import capacity as hard
from spotsurfer.core.scheduling.placement import choose
from spotsurfer.model.actions import Preview
from spotsurfer.model.job import Job
from spotsurfer.model.market import Offer
from spotsurfer.model.snapshot import JobSeen, Snapshot
from spotsurfer.ports.policies import Policy


def preview(job: Job, snapshot: Snapshot, policy: Policy, now: datetime) -> Preview:
    """The same choice that `decide` would make of the same world."""
    offers = told(snapshot, evidence(snapshot, now))
    choices, rejected = choose(JobSeen(job, ()), offers, snapshot.cooldowns, policy, now, snapshot.limits)
    choices = list(choices)
    return Preview(choices, rejected, _obstacle(job, snapshot, choices))


def _obstacle(job: Job, snapshot: Snapshot, choices: Sequence[Offer]) -> str:
    if not snapshot.listing_complete:
        return "the cloud's listing is not complete: nothing is launched on a partial view"
    if not choices:
        return "no machine can be had now that fits and may be tried"
    full = hard.no_room_left(snapshot, choices[0], ())
    return full or hard.no_money_left(snapshot, JobSeen(job, ()), choices[0], ()) or ""
