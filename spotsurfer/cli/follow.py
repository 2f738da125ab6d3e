"""Following at the command line: long operations with progress, the timeline as it happens, and waits with a verdict."""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from spotsurfer.cli import printing
from spotsurfer.cli.common import moment_of
from spotsurfer.cli.printing import clean, complain, is_json, paragraph, put_json, tell, when
from spotsurfer.common.units import size
from spotsurfer.model.errors import JobEndedBadly, JobHeld, MoveFailed, SpotsurferError, WaitOver
from spotsurfer.model.job import ENDED, JobState
from spotsurfer.web.client import LONG_POLL_SECONDS, Client, Json, job_path, patiently

# ---- Long operations: started at the controller, followed here with a line of progress, stopped with Ctrl-C.

QUIET_SECONDS = 2.0  # shorter operations print only their result
STEP_SECONDS = 1.0


class Meter:
    """A line on standard error about a long operation, from its third second on, and then once a second.

    The line of a terminal is overwritten.
    """

    def __init__(self, what: str) -> None:
        self._what, self._said, self._open = what, time.monotonic() + QUIET_SECONDS - STEP_SECONDS, False

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            print(file=sys.stderr, flush=True)

    def bytes(self, stage: str, at: int, of: int) -> None:
        """Progress in bytes; 0 if the total is not known."""
        self.count(stage, size(at), size(of) if of else "")

    def count(self, stage: str, at: object, of: object) -> None:
        """Progress in things without a unit."""
        if time.monotonic() - self._said < STEP_SECONDS:
            return
        self._said = time.monotonic()
        text = f"{self._what}: {stage}{f' {at} of {of}' if of else ''} …"
        self._open = sys.stderr.isatty()
        print(f"\r\x1b[K{text}" if self._open else text, end="" if self._open else "\n", file=sys.stderr, flush=True)


def follow(client: Client, path: str, body: Mapping[str, object] | None = None) -> Json:
    """The result of the operation that this POST starts; raises its error. Ctrl-C stops it at the controller, too."""
    state, since = client.post(path, body), time.monotonic()
    number = state["id"]
    try:
        with Meter(state["what"]) as meter:
            while not state["done"]:
                early = time.monotonic() - since < QUIET_SECONDS
                wait = STEP_SECONDS if early or sys.stderr.isatty() else LONG_POLL_SECONDS
                state = client.get(f"/v1/work/{number}", wait=wait)
                if not state["done"]:
                    meter.count(state["stage"], state["at"], state["of"])
    except KeyboardInterrupt:
        with suppress(SpotsurferError):
            client.delete(f"/v1/work/{number}")
        raise
    return state["result"] or {}


# ---- Timeline and waits

LOOK_SECONDS = 0.5
LAST_LINES = 10  # of all jobs, shown before new lines


def moments(client: Client, job: str | None, **first: object) -> Iterator[list[Json]]:
    """Lines of the timeline, batch by batch and for ever; an empty batch means that nothing happened for a while.

    `first`: which existing lines to include (`since`, `last`), else all.
    """
    answer = _after(client, job, 0, **first)
    while True:
        yield answer["moments"]
        answer = _after(client, job, answer["next"], wait=LONG_POLL_SECONDS)


def _after(client: Client, job: str | None, number: int, **asked: object) -> Json:
    path = job_path(job, "timeline") if job else "/v1/timeline"
    return patiently(lambda: client.get(path, after=number, **asked), tell)


def line(moment: Json, with_job: bool) -> str | None:
    """One moment for people; None if another one says the same."""
    said = printing.of_moment(moment)
    if said is None:
        return None
    job = f"{moment['job'] or '-'} " if with_job else ""
    attempt = f"#{moment['attempt']}" if moment["attempt"] is not None else ""
    return f"{when(moment['at'])}  {job}{attempt:<3} {said[0]:<13} {said[1]}"


def id_of(client: Client, job: str) -> str:
    """The id of a job, because its name may later mean another job. Keeps a word that is no whole id or name."""
    found = client.get(job_path(job))
    return str(found["id"]) if job in (found["id"], found["spec"]["name"]) else job


def has_ended(job: Json) -> bool:
    """Whether the job is over for good."""
    return JobState(job["state"]) in ENDED


def watch(client: Client, job: str | None, since: str | None) -> None:
    """Print the timeline until the job ends (or for ever): all of one job, or the last lines of all jobs and what is new."""
    if job is not None:
        job = id_of(client, job)
    first: dict[str, object] = {} if job is not None else {"last": LAST_LINES}
    if since is not None:
        first = {"since": moment_of(since).isoformat()}
    shown = 0
    for batch in moments(client, job, **first):
        _print(batch, job is None)
        shown = batch[-1]["number"] if batch else shown
        if job and has_ended(patiently(lambda: client.get(job_path(job)), tell)):
            # Lines written between the last batch and the look at the job.
            _print(_after(client, job, shown, **first)["moments"], job is None)
            return


def _print(batch: list[Json], with_job: bool) -> None:
    for moment in batch:
        if not put_json(moment, compact=True) and (text := line(moment, with_job)) is not None:
            paragraph(text)


@contextmanager
def _in_spite_of_ctrl_c(what: str, job: str) -> Iterator[None]:
    """Ctrl-C ends only the wait, and the user is told so."""
    try:
        yield
    except KeyboardInterrupt:
        complain(f"{what}: `spotsurfer watch {job}` follows it.")
        raise


def until_ended(client: Client, job: str, limit_seconds: float | None = None) -> Json:
    """Wait for the end of a job, printing its timeline on stderr beside plain text.

    Raises JobHeld for a job that only its user can resume, WaitOver after `limit_seconds`.
    """
    with _in_spite_of_ctrl_c(f"Job {job} goes on", job):
        end = math.inf if limit_seconds is None else time.monotonic() + limit_seconds
        after = 0
        while True:
            left = end - time.monotonic()
            answer = _after(client, job, after, wait=max(min(left, LONG_POLL_SECONDS), 0.0))
            after = answer["next"]
            for moment in [] if is_json() else answer["moments"]:
                if (text := line(moment, with_job=False)) is not None:
                    tell(text)
            found = patiently(lambda: client.get(job_path(job)), tell)
            if has_ended(found):
                return found
            if found["state"] == JobState.HELD and not found["held_by"]:
                raise JobHeld(
                    f"Job {job} is held: {clean(found['reason']).rstrip('.')}. `spotsurfer resume {job}` lets it go on."
                )
            if time.monotonic() >= end:
                over = f"Job {job} has not ended within {limit_seconds:g} seconds; it goes on"
                raise WaitOver(f"{over}, and `spotsurfer watch {job}` follows it.")


def verdict(job: Json) -> None:
    """Raise JobEndedBadly for a job that did not succeed."""
    if job["state"] == JobState.SUCCEEDED:
        return
    code = f" with exit code {job['exit_code']}" if job["exit_code"] is not None else ""
    raise JobEndedBadly(
        f"Job {job['id']} {job['state']}{code}{': ' + clean(job['reason']) if job['reason'] else ''}. "
        f"`spotsurfer logs {job['id']}` shows its output."
    )


def was_held(moment: Json) -> bool:
    """Whether the job came to a stop that only its user, or an awaited event, ends."""
    return bool(moment["kind"] == "ended" and moment["data"].get("state") == JobState.HELD)


def until(client: Client, job: str, look: Callable[[Json, list[Json]], str | None], limit_seconds: float, after: int) -> str:
    """Wait until `look` returns a sentence about the job and its new moments; prints on stderr the reason for the wait.

    Raises MoveFailed when the job ends or is held, or time is over.
    """
    with _in_spite_of_ctrl_c(f"The order to {job} stands", job):
        end = time.monotonic() + limit_seconds
        seen: list[Json] = []
        told = {""}
        while True:
            found = patiently(lambda: client.get(job_path(job)), tell)
            fresh = _after(client, job, after, wait=2.0)
            after = fresh["next"]
            seen += fresh["moments"]
            if sentence := look(found, seen):
                return sentence
            if has_ended(found):
                raise MoveFailed(f"Job {job} ended first ({found['state']}).")
            if found["state"] == JobState.HELD and any(map(was_held, seen)):
                raise MoveFailed(
                    f"Job {job} is held: {clean(found['reason']).rstrip('.')}. `spotsurfer resume {job}` lets it go on."
                )
            note = str(found["note"]) if found["note"] != found["reason"] else ""
            if (gist := re.sub(r"[0-9.]+", "", note)) not in told:  # a sentence that counts seconds is printed once
                told.add(gist)
                tell(f"Job {job} waits: {note}")
            if time.monotonic() > end:
                raise MoveFailed(f"It has not happened within {limit_seconds:g} seconds; `spotsurfer show {job}` says why.")
            time.sleep(LOOK_SECONDS)
