"""Runs the user's command on the controller's host when a job is done, failed or held."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Sequence

import structlog
from sqlalchemy import Connection, Engine

from spotsurfer.model.job import Job, rehearses
from spotsurfer.model.timeline_events import Kind
from spotsurfer.ports.clock import Clock
from spotsurfer.ports.service import Moment
from spotsurfer.state import jobs as rows
from spotsurfer.state import journal, timeline

log = structlog.get_logger()
LIMIT_SECONDS = 600


class Hooks:
    """Runs commands beside the loop, at least once each: the intent is written with the job's end, in one transaction."""

    def __init__(self, engine: Engine, clock: Clock, for_all: Sequence[str]) -> None:
        self._engine = engine
        self._clock = clock
        self.for_all = tuple(for_all)

    def on_end(self, connection: Connection, job: Job) -> Callable[[], None] | None:
        """Called inside the transaction that ends or holds the job; the function it returns starts the commands."""
        if rehearses(job):
            return None
        commands = [c for c in (job.spec.on_end, self.for_all) if c]
        entries = [
            (journal.begin(connection, f"hook/{job.id}/{job.state}/{i}", self._clock.now()), command)
            for i, command in enumerate(commands)
        ]
        return (lambda: self._start(job, entries)) if entries else None

    def again(self) -> None:
        """At start-up: run the commands that a crash left undone."""
        with self._engine.connect() as connection:
            left = [(n, a.split("/")) for n, a in journal.unfinished(connection) if a.startswith("hook/")]
            known = {job: rows.find_job(connection, job) for _, (_, job, _, _) in left}
        for number, (_, name, _, index) in left:
            job = known[name]
            commands = [c for c in (job.spec.on_end, self.for_all) if c]
            if int(index) < len(commands):
                self._start(job, [(number, commands[int(index)])])

    def _start(self, job: Job, entries: Sequence[tuple[int, Sequence[str]]]) -> None:
        for number, command in entries:
            threading.Thread(target=self._run, args=(job, number, command), name=f"hook-{job.id}", daemon=True).start()

    def _run(self, job: Job, entry: int, command: Sequence[str]) -> None:
        environment = {
            **os.environ,
            "SPOTSURFER_JOB": job.id,
            "SPOTSURFER_JOB_NAME": job.spec.name,
            "SPOTSURFER_JOB_STATE": str(job.state),
            "SPOTSURFER_JOB_REASON": job.reason,
            "SPOTSURFER_JOB_EXIT_CODE": "" if job.exit_code is None else str(job.exit_code),
        }
        try:
            done = subprocess.run(
                list(command),
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=LIMIT_SECONDS,
                check=False,
            )
            text = f"{command[0]} ended with exit code {done.returncode}"
        except (OSError, subprocess.TimeoutExpired) as e:
            text = f"{command[0]} did not run: {e}"
        now = self._clock.now()
        with self._engine.begin() as connection:
            journal.finish(connection, entry, text, now)
            timeline.add(connection, Moment(now, job.id, None, str(Kind.HOOK), text))
        log.info("hook.done", job=job.id, outcome=text)
