"""Head logs of all jobs, as `decide` sees them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from spotsurfer_wire.head_log import HeadLog
from spotsurfer_wire.messages import Head, HeadKind
from spotsurfer_wire.store.port import ObjectStore

from spotsurfer.model.job import AttemptNumber
from spotsurfer.model.snapshot import HeadSeen

ENTRIES_AT_ONCE = 1000  # of one log, because all jobs wait during the read
NONE = HeadSeen(0, AttemptNumber(0), None, 0, final=False, done=False)


class HeadLogs:
    """The head logs of all jobs. It reads a log only if it has probably grown, and now and then anyway."""

    def __init__(self, store: ObjectStore, at_least_every: timedelta = timedelta(seconds=60)) -> None:
        self._store = store
        self._every = at_least_every
        self._logs: dict[str, HeadLog] = {}
        self._read_at: dict[str, datetime] = {}
        self._asked_at: dict[str, datetime] = {}

    def log(self, job: str) -> HeadLog:
        """The log of a job, for appending."""
        return self._logs.setdefault(job, HeadLog(self._store, job))

    def seen(self, job: str, now: datetime, fresh: bool) -> HeadSeen:
        """The newest entry and the checkpoints; read again if `fresh` or old. Raises StoreError, ProtocolError.

        If a log has very many new entries, it takes several calls to read them, and nothing is returned before the end.
        """
        self._asked_at[job] = now  # before the read: a tick may call `keep` meanwhile
        log, read_at = self.log(job), self._read_at.get(job)
        if fresh or read_at is None or now - read_at >= self._every:
            self._read_at.pop(job, None)  # the log is incomplete until its end was read
            log.refresh(ENTRIES_AT_ONCE)
            self._read_at[job] = now
        return summary(log.entries)

    def keep(self, jobs: Iterable[str], now: datetime) -> None:
        """Forget the logs of all other jobs that were not requested lately."""
        for job in self._logs.keys() - set(jobs):
            asked_at = self._asked_at.get(job)
            if asked_at is None or now - asked_at >= self._every:
                for of_jobs in (self._logs, self._read_at, self._asked_at):
                    of_jobs.pop(job, None)


def summary(entries: Sequence[Head]) -> HeadSeen:
    """The summary of a whole log."""
    if not entries:
        return NONE
    newest = entries[-1]
    done = newest.done
    ends = [e.done for e in entries if e.done is not None and e.done.reason == "exited"]
    failures = sum(1 for end in ends if end.exit_code != 0 or end.undelivered)
    return HeadSeen(
        number=newest.number,
        epoch=AttemptNumber(newest.epoch),
        checkpoint=newest.checkpoint,
        sequence=newest.sequence,
        final=newest.final,
        done=newest.kind is HeadKind.DONE,
        cancelled=done is not None and done.reason == "cancelled",
        exit_code=done.exit_code if done else None,
        failures=failures,
        ended_by=done.ended_by if done else "",
        undelivered=done.undelivered if done else "",
        checkpoints=tuple(_since_beginning(entries)),
        worked=frozenset(e.epoch for e in entries if (e.checkpoint and e.kind is HeadKind.COMMIT) or e.kind is HeadKind.DONE),
        grants=tuple((e.number, e.checkpoint) for e in entries if e.kind is HeadKind.GRANT),
    )


def _since_beginning(entries: Sequence[Head]) -> list[str]:
    """Checkpoints of the job's present life. A grant from nothing (a retry) begins a new life without older checkpoints; a
    grant from an older checkpoint leaves out those after it, because the job no longer builds on them.
    """
    tip: str | None = None
    parent: dict[str, str | None] = {}
    for e in entries:
        if e.kind is HeadKind.GRANT:
            tip = e.checkpoint
        if e.kind is HeadKind.COMMIT and e.checkpoint is not None:
            parent[e.checkpoint], tip = tip, e.checkpoint
    line: dict[str, None] = {}
    while tip is not None and tip not in line:  # a log that was tampered with must not lead us in circles
        line[tip] = None
        tip = parent.get(tip)
    return list(line)[::-1]


def written_at(entry: Head, now: datetime) -> datetime:
    """When an entry was written, as its writer says; `now` if it names no time with a zone, or one that is yet to come.

    The text is for people; anyone with the credentials of one machine can write any time.
    """
    try:
        found = datetime.fromisoformat(entry.at)
    except ValueError:
        return now
    return now if found.tzinfo is None else min(found, now)


def chosen(wanted: str, entries: Sequence[Head]) -> str | None:
    """The committed checkpoint that a user names, in full or by its sequence number alone; None = there is none."""
    made = [e.checkpoint for e in entries if e.kind is HeadKind.COMMIT and e.checkpoint]
    if wanted in made:
        return wanted
    by_number = [c for c in made if wanted.isdecimal() and int(c.rpartition("-")[2]) == int(wanted)]
    return by_number[-1] if by_number else None
