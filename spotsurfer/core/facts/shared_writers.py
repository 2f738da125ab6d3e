"""Two jobs that write one file of a shared file system: neither could be brought back without harm to the other. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from spotsurfer.core.facts.attempt_view import holder_of
from spotsurfer.model.job import JobId
from spotsurfer.model.snapshot import JobSeen


def rivals(jobs: Iterable[JobSeen]) -> dict[JobId, str]:
    """Why jobs may not run now: another one has a file of theirs open for writing. Of two that run, the first one stays."""
    writers = [(holder_of(s.attempts) is None, s.job.submitted_at, s.job.id, s) for s in jobs if s.writes]
    taken: dict[str, JobId] = {}
    found: dict[JobId, str] = {}
    for waits, _, job, seen in sorted(writers, key=lambda w: w[:3]):
        both = next((path for path in seen.writes if path in taken), None)
        if both is not None:
            found[job] = (
                f"it writes {both}, which {taken[both]} has open for writing, too: on a shared file system only one job can "
                "write a file, because going back to a checkpoint takes the other one's work, too. Give each a file of its own"
            )
        elif not waits:
            taken.update(dict.fromkeys(seen.writes, job))
    return found
