"""Whether silence is evidence. One agent that says nothing is dead or cut off; many at once are cut off by what they share.

A doubt ends by itself. Where the store was down for machines, they speak again. Else somebody has to show that it is not the
store: a machine that is new. Where nobody orders one anyway, one more is ordered for a silent job, and waits beside its holder:
that costs minutes of a machine, and ends none. Where none can be ordered (limits, money, no offers), one silent machine after
the other is given up, hours later and long after each has frozen its job; what comes in its place can tell about the others.
No job gets two owners by that: under a doubt a machine that was given up is waited for until the cloud says that it is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from spotsurfer.core.case import Case, cases, wanted
from spotsurfer.model.ids import AttemptNumber, JobId
from spotsurfer.model.job import HOLDS, WAITS
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.snapshot import Doubt, Snapshot

# Times count from when all of the quiet ones were silent for longer than their leases.
ASKS_SECONDS = 900.0  # a store that is down for machines is mostly back by then
AGAIN = timedelta(seconds=1800)  # between two machines that are ordered, or given up, to find out
GIVES_UP_SECONDS = 7200.0  # who is healthy and only waits for the store should not lose what it did not save


def doubt(snapshot: Snapshot, now: datetime) -> Doubt | None:
    """Why the silence of agents is none of theirs, and what to do about that; None where it is evidence.

    They write to one store. When more than half of those that spoke before are quiet at once, the store does not take what they
    write, whatever it takes from us. Quiet is who missed a report or two: each speaks at its own times, so the first one that
    is silent for too long is seldom the only one that can't speak. Evidence against all that is a machine that was ordered
    since they fell silent, and speaks. (A machine that the cloud says is gone needs no silence.)
    """
    known = [c for seen in snapshot.jobs for c in cases(snapshot, seen, now) if _expected(c)]
    quiet = [c for c in known if c.quiet]
    if len(quiet) < 2 or 2 * len(quiet) <= len(known):
        return None
    fell_silent_at = now - timedelta(seconds=min(c.unheard_seconds for c in quiet))
    if any(_ordered_after(c, fell_silent_at) for c in known if not c.quiet):
        return None
    why = f"{len(quiet)} of {len(known)} agents fell silent together, so the store seems not to take their reports"
    found = Doubt(why)
    silent_for = min(c.silent_seconds - c.silence_seconds for c in quiet)
    if silent_for <= ASKS_SECONDS or _awaited(snapshot, quiet, fell_silent_at, now):
        return found
    if silent_for > GIVES_UP_SECONDS and not _left_lately(snapshot, now):
        found = replace(found, gives_up=_least(quiet))
    return replace(found, asks=_asking(quiet))


def _expected(case: Case) -> bool:
    """Its agent spoke, and would go on speaking if it could."""
    dead = case.agent is not None and case.agent.workload_dead
    return case.spoke and not case.gone and not dead and (case.state in HOLDS or case.state in (A.BOOTING, A.READY))


def _ordered_after(case: Case, at: datetime) -> bool:
    return case.attempt.launched_at is not None and case.attempt.launched_at > at


def _awaited(snapshot: Snapshot, quiet: Sequence[Case], since: datetime, now: datetime) -> bool:
    """A machine that can tell is on its way, or came a while ago and said nothing either.

    One that stood by before they fell silent, and speaks, tells nothing.
    """
    told = {(c.attempt.job, c.attempt.number) for c in quiet}
    new = [(seen, a) for seen in snapshot.jobs for a in seen.attempts if (a.job, a.number) not in told]
    lately = max(since, now - AGAIN)
    return any(
        (a.state in WAITS and a.number not in seen.agents and a.number not in seen.unread)
        or (a.launched_at is not None and a.launched_at > lately)
        for seen, a in new
    )


def _left_lately(snapshot: Snapshot, now: datetime) -> bool:
    leaving = (a for seen in snapshot.jobs for a in seen.attempts if a.state in (A.LOST, A.RELEASING, A.RELEASED))
    return any(now - a.since < AGAIN for a in leaving)


def _asking(quiet: Sequence[Case]) -> JobId | None:
    """The job that a machine more is ordered for, the next time another one: whoever had the fewest."""
    able = [c.seen for c in quiet if c.state in HOLDS and wanted(c.seen) and not any(a.state in WAITS for a in c.seen.attempts)]
    chosen = min(able, key=lambda seen: (len(seen.attempts), seen.job.submitted_at, seen.job.id), default=None)
    return None if chosen is None else chosen.job.id


def _least(quiet: Sequence[Case]) -> tuple[JobId, AttemptNumber]:
    """The machine with which the least is lost."""
    key = lambda c: (c.state in HOLDS, c.seen.job.spec.priority, c.seen.at_risk_seconds, c.attempt.job)  # noqa: E731
    least = min(quiet, key=key)
    return least.attempt.job, least.attempt.number
