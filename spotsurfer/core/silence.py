"""Whether silence is evidence. One agent that says nothing is dead or cut off; many at once are cut off by what they share."""

from __future__ import annotations

from datetime import datetime

from spotsurfer.core.case import Case, cases
from spotsurfer.model.job import HOLDS
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.snapshot import Snapshot


def doubt(snapshot: Snapshot, now: datetime) -> str:
    """Why the silence of agents is none of theirs; "" where it is evidence.

    They write to one store. When more than half of those that spoke before are quiet at once, the store does not take what they
    write, whatever it takes from us. Quiet is who missed a report or two: each speaks at its own times, so the first one that
    is silent for too long is seldom the only one that can't speak. Evidence against all that is a machine that was ordered
    since they fell silent, and speaks. (A machine that the cloud says is gone needs no silence.)
    """
    known = [c for seen in snapshot.jobs for c in cases(snapshot, seen, now) if _expected(c)]
    quiet = [c for c in known if c.silent_seconds > c.lease_seconds / 2]
    if len(quiet) < 2 or 2 * len(quiet) <= len(known):
        return ""
    fell_silent = min(c.silent_seconds for c in quiet)
    younger = (c.attempt.launched_at for c in known if c not in quiet and c.attempt.launched_at is not None)
    if any((now - launched_at).total_seconds() < fell_silent for launched_at in younger):
        return ""
    return f"{len(quiet)} of {len(known)} agents fell silent together, so the store seems not to take their reports"


def _expected(case: Case) -> bool:
    """Its agent spoke, and would go on speaking if it could."""
    dead = case.agent is not None and case.agent.workload_dead
    return case.spoke and not case.gone and not dead and (case.state in HOLDS or case.state in (A.BOOTING, A.READY))
