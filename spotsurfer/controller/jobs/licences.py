"""Pools of licences: those of the configuration, and those of which a command says how many there are.

Commands run beside the loop, each at its own pace, with bounded time and output. A number counts for `keep_seconds` after the
next runs failed; then none is free, and no job begins to run that needs one. Nothing here is kept over a restart: who has which
licence is computed from the jobs, and the first run of a command comes at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import structlog
from sqlalchemy import Engine

from spotsurfer.common.input_errors import did_you_mean
from spotsurfer.core.scheduling.licences import Licences, waiting
from spotsurfer.model.errors import JobFileError
from spotsurfer.model.job import Job, JobId, JobSpec
from spotsurfer.model.licences import LicencePool, LicenceRule, LicenceStatus, LicenceUse
from spotsurfer.model.snapshot import Snapshot
from spotsurfer.model.timeline_events import Kind
from spotsurfer.ports.clock import Clock
from spotsurfer.ports.service import Moment
from spotsurfer.state import timeline

log = structlog.get_logger()
LIMIT_SECONDS = 20.0  # of a command
OUTPUT_BYTES = 4096  # more is no number
MOST = 1_000_000_000
NO_POOL = "there is no such pool in [licences] any more, so no job that needs one begins"


class NoNumber(Exception):
    """The command did not print one; half a sentence."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a command last said. `total`, `at`: its last number. `tried_at`: when it was last run. `trouble`: of that run."""

    tried_at: datetime
    total: int = 0
    at: datetime | None = None
    trouble: str = ""


class LicencePools:
    """What there is, and who has it. `rules` are replaced by a reload."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        snapshot: Callable[[], Snapshot | None],
        poke: Callable[[], None],
        rules: Sequence[LicenceRule],
    ) -> None:
        """`snapshot`: the controller's last look. `poke`: called when a number has changed."""
        self._engine, self._clock, self._snapshot, self._poke = engine, clock, snapshot, poke
        self.rules = rules
        self._readings: dict[tuple[str, ...], Reading] = {}  # by command
        self.stopping = threading.Event()

    def seen(self, now: datetime) -> Mapping[str, LicencePool]:
        """The pools as decisions see them."""
        return {rule.kind: self._pool(rule, now) for rule in self.rules}

    def _pool(self, rule: LicenceRule, now: datetime) -> LicencePool:
        if rule.total is not None:
            return LicencePool(rule.kind, max(rule.total - rule.reserve, 0))
        read = self._readings.get(rule.command)
        if read is None:
            return LicencePool(rule.kind, 0, "they were not counted yet")
        fresh = read.at is not None and now - read.at <= timedelta(seconds=rule.every_seconds + rule.keep_seconds)
        why = f"they can't be counted: {read.trouble}" if read.trouble and not fresh else ""
        return LicencePool(rule.kind, max(read.total - rule.reserve, 0) if fresh else 0, why)

    def check(self, spec: JobSpec) -> None:
        """Raises JobFileError for a job that could never have its licences: of no pool, or more than the operator has."""
        known = {rule.kind: rule for rule in self.rules}
        for kind, n in spec.licences.items():
            if (rule := known.get(kind)) is None:
                hint = did_you_mean(kind, known) if known else "The operator has set none in [licences]."
                raise JobFileError(f"resources.licences names {kind!r}, and there is no such pool. {hint}")
            if rule.total is not None and n > (most := max(rule.total - rule.reserve, 0)):
                raise JobFileError(f"resources.licences has {kind} = {n}, and there are {most} for jobs")

    def look(self) -> None:
        """Run the commands that are due."""
        for rule in (r for r in self.rules if r.command and not self.stopping.is_set()):
            now, before = self._clock.now(), self._readings.get(rule.command)
            if before is None or now - before.tried_at >= timedelta(seconds=rule.every_seconds):
                self._read(rule, before or Reading(now))

    def _read(self, rule: LicenceRule, before: Reading) -> None:
        try:
            total = number_of(rule.command)
            now = self._clock.now()
            read = Reading(now, total, now)
        except NoNumber as e:
            read = Reading(self._clock.now(), before.total, before.at, str(e))
        self._readings = {**self._readings, rule.command: read}
        if read.trouble and not before.trouble:
            log.warning("licences.uncounted", kind=rule.kind, error=read.trouble)
            self._say(f"the licences {rule.kind} can't be counted: {read.trouble}; the last number counts for a while")
        if (read.total, bool(read.trouble)) != (before.total, bool(before.trouble)) or before.at is None:
            self._poke()

    def _say(self, text: str) -> None:
        with self._engine.begin() as connection:
            timeline.add(connection, Moment(self._clock.now(), None, None, str(Kind.ALERT), text))

    def licences(self, owner: str | None = None) -> Sequence[LicenceStatus]:
        """All pools with who has their licences and who waits, as of the last look; with `owner`, of their jobs alone.

        A kind for which the configuration has no pool any more is told if jobs name it: who waits for it waits in vain.
        """
        snapshot, now = self._snapshot(), self._clock.now()
        jobs: dict[JobId, Job] = {} if snapshot is None else {s.job.id: s.job for s in snapshot.jobs}
        have = {} if snapshot is None else Licences(snapshot, now).holders
        wait = [] if snapshot is None else [job for job in waiting(snapshot) if job.id not in have]
        named = {kind for job in (*wait, *(jobs[j] for j in have)) for kind in job.spec.licences}
        gone = [LicenceRule(kind, 0) for kind in sorted(named - {rule.kind for rule in self.rules})]
        told = [self._status(rule, now, [jobs[j] for j in have], wait, owner) for rule in (*self.rules, *gone)]
        return [replace(s, trouble=NO_POOL) if s.kind in {rule.kind for rule in gone} else s for s in told]

    def _status(
        self, rule: LicenceRule, now: datetime, have: Sequence[Job], wait: Sequence[Job], owner: str | None
    ) -> LicenceStatus:
        def uses(jobs: Sequence[Job]) -> list[LicenceUse]:
            return [LicenceUse(j.id, n) for j in jobs if (n := j.spec.licences.get(rule.kind)) and owner in (None, j.owner)]

        read, pool = self._readings.get(rule.command), self._pool(rule, now)
        return LicenceStatus(
            kind=rule.kind,
            total=pool.total,
            used=sum(j.spec.licences.get(rule.kind, 0) for j in have),
            reserve=rule.reserve,
            held=uses(have),
            waiting=uses(wait),
            waiting_jobs=sum(rule.kind in j.spec.licences for j in wait),
            command=rule.command,
            read_at=None if read is None else read.at,
            trouble=pool.why or ("" if read is None else read.trouble),
        )


def number_of(command: Sequence[str], limit_seconds: float = LIMIT_SECONDS) -> int:
    """The whole number that the command prints, and nothing else. Raises NoNumber."""
    try:
        process = subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except OSError as e:
        raise NoNumber(f"{command[0]} can't be run: {e.strerror}") from None
    late = threading.Timer(limit_seconds, _kill, [process])
    late.start()
    try:
        with process:
            assert process.stdout is not None
            said = process.stdout.read(OUTPUT_BYTES + 1)
            if len(said) > OUTPUT_BYTES:
                raise NoNumber(f"{command[0]} printed more than {OUTPUT_BYTES} bytes")
            process.wait()
    finally:
        in_time = late.is_alive()
        late.cancel()
        _kill(process)
    if not in_time:
        raise NoNumber(f"{command[0]} took longer than {limit_seconds:g} s")
    if process.returncode:
        raise NoNumber(f"{command[0]} ended with exit code {process.returncode}")
    text = said.decode(errors="replace").strip()
    if not text.isdecimal() or not text.isascii() or len(text) > 10 or int(text) > MOST:
        raise NoNumber(f"{command[0]} printed {text[:60]!r}, expected a whole number")
    return int(text)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End it with all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
