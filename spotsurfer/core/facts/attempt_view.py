"""AttemptView: one attempt with all known facts, the questions that rules ask, and the job's phase in one word. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from spotsurfer.model.job import ENDED, HOLDS, WAITS, Attempt, AttemptState, HeldBy, Job, JobState, Rewind, Wish
from spotsurfer.model.machine import MachineState
from spotsurfer.model.snapshot import (
    AgentSeen,
    HeadSeen,
    Hearing,
    InstanceSeen,
    JobSeen,
    Limits,
    NoticeSeen,
    Snapshot,
    UnreadSeen,
)

# ---- Rewind: a held, ended or running job goes back to a checkpoint that its user chose


def going_back(seen: JobSeen) -> Rewind | None:
    """The rewind that is still open: no later grant was from its checkpoint. None for a cancelled job."""
    asked, head = seen.job.rewind, seen.head
    if asked is None or head is None or seen.job.wish is Wish.CANCEL:
        return None
    return None if any(n > asked.after and c == asked.checkpoint for n, c in head.grants) else asked


WORKING = frozenset(
    {"running", "stepping", "saving", "draining", "publishing", "keeping", "returning", "drained", "finished", "overrun"}
)

FAILED_SECONDS = 60.0  # wait after a failed final save, unless it is urgent: every attempt pauses the job


@dataclass(frozen=True, slots=True)
class AttemptView:
    """All facts that `decide` has about one attempt."""

    seen: JobSeen
    attempt: Attempt
    instance: InstanceSeen | None
    agent: AgentSeen | None
    listed_at: datetime | None  # of its provider's complete listing; None = absence from it is no evidence
    listed_elsewhere: bool  # another provider's listing is complete
    limits: Limits
    now: datetime
    signs: tuple[NoticeSeen, ...]
    unread: UnreadSeen | None
    hearing: Hearing
    doubt: str  # why silence is no evidence
    stays: bool = False  # its machine is kept, and not being ended

    @property
    def state(self) -> AttemptState:
        """The attempt's state."""
        return self.attempt.state

    @property
    def head(self) -> HeadSeen | None:
        """The job's head; None if the store could not be read."""
        return self.seen.head

    @property
    def owns(self) -> bool:
        """Whether the newest head entry names this attempt."""
        return self.head is not None and self.head.epoch == self.attempt.number

    @property
    def owns_final(self) -> bool:
        """Whether the newest head entry is this attempt's final checkpoint: the job does not run here any more."""
        return self.owns and self.head is not None and self.head.final

    @property
    def unsaved(self) -> bool:
        """Whether the job can't be saved now, so that leaving its machine costs work."""
        return self.seen.job.spec.engine == "none" or (self.agent is not None and self.agent.protection == "none")

    @property
    def broken(self) -> bool:
        """Whether its agent reports that the job could not go on there."""
        return self.agent is not None and self.agent.state == "broken"

    @property
    def over_by_head(self) -> bool:
        """Whether the head shows that the work of this attempt has ended: by itself, or because the job was closed."""
        return self.head is not None and self.head.done and (self.owns or self.head.cancelled)

    @property
    def age_seconds(self) -> float:
        """Time in the present state."""
        return (self.now - self.attempt.since).total_seconds()

    @property
    def spoke(self) -> bool:
        """Whether its agent has reported, readable or not."""
        return self.agent is not None or self.unread is not None

    @property
    def _last_word_at(self) -> datetime:
        """When its agent last reported; before its first report: when the attempt entered its present state."""
        words = (seen.spoke_at for seen in (self.agent, self.unread) if seen is not None)
        return max(words, default=self.attempt.since)

    @property
    def unheard_seconds(self) -> float:
        """How long the controller listened without a report of its agent, even if the agent could not report."""
        return self.hearing.seconds(self._last_word_at, self.now)

    @property
    def quiet(self) -> bool:
        """Whether it missed a report or two: each agent reports several times per lease."""
        return self.unheard_seconds > self.lease_seconds / 2

    @property
    def silent_seconds(self) -> float:
        """How long the controller listened, and its agent was able to report but did not."""
        could = self.seen.silent_from.get(self.attempt.number)
        return self.hearing.seconds(max(self._last_word_at, could or self._last_word_at), self.now)

    @property
    def silence_seconds(self) -> float:
        """Its lease and a margin: a holder that did not report for so long has frozen its job."""
        return self.lease_seconds + self.limits.lease_margin_seconds

    @property
    def lease_seconds(self) -> float:
        """The lease with which its machine was ordered: as its agent reports it, else from its row."""
        if self.agent is not None and self.agent.lease_seconds > 0:
            return self.agent.lease_seconds
        given = self.attempt.lease_seconds
        return self.limits.lease_seconds if given is None else given

    @property
    def silent(self) -> bool:
        """Whether it did not report for longer than its lease, without another explanation: if alive, it froze its job."""
        return not self.doubt and self.silent_seconds > self.silence_seconds

    @property
    def gone(self) -> bool:
        """Whether the machine has ended: the cloud shows it, or a complete listing lacks it and its agent does not report."""
        if self.instance is not None:
            return self.instance.gone
        said_nothing = self.quiet if self.spoke else self.unheard_seconds > 0
        if self.listed_at is None or not said_nothing:
            return False  # an agent that reports, or may have reported unheard, is there, whatever a listing lacks
        appeared = self.attempt.launched_at or self.attempt.planned_at
        if self.attempt.state is AttemptState.RELEASING:
            appeared = max(appeared, self.attempt.since)
        return self.listed_at - appeared >= timedelta(seconds=self.limits.listing_lag_seconds)

    @property
    def left(self) -> bool:
        """Whether the job has no owner any more, if this attempt was the last one.

        Machine and head count beside the state, because the look that sees their end also grants the job to another.
        """
        return self.state not in HOLDS or self.gone or self.owns_final

    @property
    def agent_noticed(self) -> bool:
        """Whether the agent reports that the cloud reclaims the machine."""
        return self.agent is not None and self.agent.notice_id is not None and self.agent.notice_kind == "interruption"

    @property
    def warned(self) -> NoticeSeen | None:
        """The sign of another witness that the cloud reclaims the machine."""
        return next((s for s in self.signs if s.sign == "interruption"), None)

    @property
    def noticed(self) -> bool:
        """Whether the agent or another witness has a notice that the cloud reclaims the machine."""
        return self.agent_noticed or self.warned is not None

    @property
    def deadline_at(self) -> datetime | None:
        """When the machine goes, by its agent's report, else by another witness; None = unknown."""
        if self.agent_noticed and self.agent is not None and self.agent.notice_deadline_at is not None:
            return self.agent.notice_deadline_at
        return self.warned.deadline_at if self.warned is not None else None

    @property
    def advised(self) -> bool:
        """Whether the cloud advises to leave the machine at some time, and the settings follow that advice."""
        wanted = {"retirement", *(["rebalance"] if self.attempt.pool.provider in self.limits.advice_moves else [])}
        return any(s.sign in wanted for s in self.signs)

    @property
    def drain_error(self) -> str | None:
        """The agent's error of its failed final save; None = it did not fail, or the cloud reclaims the machine."""
        agent, asked = self.agent, self.attempt.desired_sequence
        if self.attempt.state is not AttemptState.DRAINING or agent is None or agent.notice_id is not None:
            return None
        return agent.error if agent.drain_failed == asked != 0 else None

    @property
    def failed_lately(self) -> str:
        """Why its final save failed within FAILED_SECONDS; "" = it did not. A newer order of the user ends the wait."""
        agent, job = self.agent, self.seen.job
        if self.attempt.state is not AttemptState.RUNNING or agent is None or not agent.drain_failed:
            return ""
        ordered = (job.resumed_at, job.move.asked_at if job.move is not None else None)
        if self.age_seconds >= FAILED_SECONDS or any(t is not None and t > self.attempt.since for t in ordered):
            return ""
        if agent.error_kind == "back":
            return agent.error
        return "its final save failed" + (f": {agent.error}" if agent.error else "")

    @property
    def harmless(self) -> bool:
        """Whether the job can no longer run under this attempt, so that another may own it.

        One of these is proof: it never owned the job; it drained or ended by the head; its agent reports that the workload is
        dead; the machine is gone; or it was silent for longer than its lease, so that it has frozen the job (see
        docs/design/ownership.md).
        """
        a = self.attempt
        if (a.granted_at is None and not self.owns) or a.state in (AttemptState.RELEASED, AttemptState.REFUSED):
            return True
        if self.head is not None and not self.owns and self.head.number > a.head_number and a.granted_at is not None:
            return True  # this was proven before a later attempt got its grant
        if self.owns_final or (self.owns and self.head is not None and self.head.done):
            return True
        if self.gone or (self.agent is not None and self.agent.workload_dead):
            return True
        return a.state not in HOLDS and self.silent


Holder = TypeVar("Holder", Attempt, AttemptView)


def holder_of(attempts: Iterable[Holder]) -> Holder | None:
    """The attempt that has the job now; no job has two."""
    return next((a for a in attempts if a.state in HOLDS), None)


def cases(snapshot: Snapshot, seen: JobSeen, now: datetime) -> list[AttemptView]:
    """A view of each attempt, oldest first."""
    doubt = snapshot.doubt
    return [
        AttemptView(
            seen=seen,
            attempt=a,
            instance=seen.instances.get(a.number),
            agent=seen.agents.get(a.number),
            listed_at=snapshot.listed_at(a.pool.provider),
            listed_elsewhere=any(at for name, at in snapshot.listings.items() if name != a.pool.provider),
            limits=snapshot.limits,
            now=now,
            signs=seen.signs.get(a.number, ()),
            unread=seen.unread.get(a.number),
            hearing=snapshot.hearing,
            stays=(m := snapshot.machines.get(a.token)) is not None and m.machine.state is MachineState.UP,
            doubt="" if doubt is None or doubt.gives_up == (seen.job.id, a.number) else doubt.why,
        )
        for a in sorted(seen.attempts, key=lambda a: a.number)
    ]


def owners(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Attempts that had the job, the last owner last, even if the job came back to one that was not the newest."""
    return sorted((a for a in attempts if a.granted_at is not None), key=lambda a: (a.head_number, a.number))


def finished(seen: JobSeen) -> bool:
    """Whether the head shows that the job is over for good: done, closed, or failed once more often than its user allows."""
    h = seen.head
    if going_back(seen) is not None:
        return False
    if h is None or not h.done:
        return seen.job.state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)
    return h.cancelled or h.succeeded or bool(h.ended_by) or h.failures > seen.job.spec.retries


def wanted(seen: JobSeen) -> bool:
    """Whether the job should run."""
    return seen.job.wish is Wish.RUN and not finished(seen)


# ---- Phase: the job's activity in one word for people, derived from its attempts, never stored

OF_HOLDER = {
    AttemptState.RESTORING: "restoring",
    AttemptState.RUNNING: "running",
    AttemptState.DRAINING: "saving",
}
OF_WAITER = {
    AttemptState.PLANNED: "ordering",
    AttemptState.REQUESTED: "ordering",
    AttemptState.BOOTING: "booting",
    AttemptState.READY: "waiting",
}
PHASES = tuple(
    dict.fromkeys(
        [
            *("queued", *OF_WAITER.values(), "starting", *OF_HOLDER.values(), "stuck", "moving"),
            *("suspending", "suspended", "held", *sorted(map(str, ENDED))),
        ]
    )
)  # all words that `phase` returns


def phase(job: Job, attempts: Sequence[Attempt]) -> str:
    """One word: queued, ordering, booting, waiting, starting, restoring, running, stuck, saving, moving, suspending,
    suspended (for want of work), or a state.
    """
    if job.state is JobState.HELD and job.held_by is HeldBy.IDLE:
        return "suspended"
    if job.state in ENDED or job.state is JobState.HELD:
        return str(job.state)
    holder = holder_of(attempts)
    waiter = next((a for a in attempts if a.state in WAITS), None)
    if holder is not None and job.wish is Wish.HOLD:
        return "suspending"
    if holder is not None and waiter is not None:
        return "moving"
    if holder is not None:
        word = OF_HOLDER[holder.state]
        if word == "running" and job.stuck_since is not None:
            return "stuck"
        return "starting" if word == "restoring" and holder.from_checkpoint is None else word
    return OF_WAITER[waiter.state] if waiter is not None else "queued"


def moves(attempts: Sequence[Attempt]) -> int:
    """How often the job went on elsewhere from a checkpoint."""
    return sum(1 for a in attempts if a.granted_at is not None and a.from_checkpoint is not None)
