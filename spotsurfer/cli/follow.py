"""Following at the command line: long operations with progress, the timeline as it happens, and waits with a verdict."""

from __future__ import annotations

import math
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime

from spotsurfer.cli import array_lines
from spotsurfer.cli.printing import clean, complain, is_json, put, put_json, tell, width
from spotsurfer.cli.timeline_lines import TimelineLines, fitting
from spotsurfer.common.timeline_words import plainly
from spotsurfer.common.units import size
from spotsurfer.model.errors import JobEndedBadly, JobHeld, MoveFailed, SpotsurferError, WaitOver
from spotsurfer.model.job import ENDED, HOLDS, WAITS, AttemptState, JobState, Wish
from spotsurfer.model.queueing.arrays import jobs_of_row
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


def id_of(client: Client, job: str) -> str:
    """The id of a job, because its name may later mean another job. Keeps a word that is no whole id or name."""
    found = client.get(job_path(job))
    return str(found["id"]) if job in (found["id"], found["spec"]["name"]) else job


def current(job: Json) -> Json | None:
    """The attempt that has the job, else the one that gets ready for it."""
    attempts: list[Json] = job["attempts"]
    for states in (HOLDS, WAITS):
        for attempt in reversed(attempts):
            if AttemptState(attempt["state"]) in states:
                return attempt
    return None


def has_ended(job: Json) -> bool:
    """Whether the job is over for good."""
    return JobState(job["state"]) in ENDED


PIPED_LINES = 20  # shown before what is new, if stdout is no terminal
KEPT_LINES = 4  # of a terminal, for the prompt and the hint
STEPS_PER_LINE = 8  # moments asked for a line that people read


@dataclass(frozen=True, slots=True)
class Watched:
    """What `watch` shows: moments `since` then, `tail` of these; without either a screenful, or `everything`."""

    jobs: Sequence[str] = ()  # none = all
    since: datetime | None = None
    tail: int | None = None
    everything: bool = False
    steps: bool = False  # each step in between, too

    def first(self) -> dict[str, object]:
        """What to ask the controller for at first."""
        since = {} if self.since is None else {"since": self.since.isoformat()}
        if self.most is None:
            return dict(since)
        many = self.most * (1 if self.steps or is_json() else STEPS_PER_LINE) * (4 if len(self.jobs) > 1 else 1)
        return {**since, "last": max(1, min(many, 100_000))}

    @property
    def most(self) -> int | None:
        """So many lines at first, at most; None = all there are."""
        if self.tail is not None:
            return self.tail
        if self.everything or self.since is not None:
            return None
        return max(shutil.get_terminal_size().lines - KEPT_LINES, 1) if sys.stdout.isatty() else PIPED_LINES


def watch(client: Client, asked: Watched) -> None:
    """Print the newest part of the timeline and what is new, until all jobs that were named have ended, or for ever."""
    jobs = list(dict.fromkeys(id_of(client, job) for job in asked.jobs))
    one = jobs[0] if len(jobs) == 1 else None
    told = TimelineLines(one is None, asked.steps, sys.stdout.isatty())
    shown, first = 0, asked.first()

    def tell_new(batch: list[Json], most: int | None = None) -> None:
        wanted = [m for m in batch if len(jobs) < 2 or m["job"] in jobs]
        wanted = wanted if is_json() else told.shown(wanted)
        cut = wanted if most is None else wanted[max(len(wanted) - most, 0) :]
        if most is not None and asked.tail is None and sys.stdout.isatty():
            cut = fitting(cut, one is None, width(), most)
        if most and (len(cut) < len(wanted) or len(batch) == first.get("last")) and not is_json():
            tell(f"(earlier moments are left out: `spotsurfer watch {' '.join([*jobs, '--all'])}` shows them)")
        for moment in cut:
            if not put_json(moment, compact=True):
                for line in told.lines(moment, width()):
                    put(line)

    for number, batch in enumerate(moments(client, one, **first)):
        tell_new(batch, asked.most if number == 0 else None)
        shown = batch[-1]["number"] if batch else shown
        if jobs and all(has_ended(patiently(lambda j=job: client.get(job_path(j)), tell)) for job in jobs):  # type: ignore[misc]
            # Moments between the last batch and the look at the jobs.
            tell_new(_after(client, one, shown, **({} if shown else first))["moments"])
            return


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
        after, told = 0, TimelineLines(with_job=False, terminal=sys.stderr.isatty())
        while True:
            left = end - time.monotonic()
            answer = _after(client, job, after, wait=max(min(left, LONG_POLL_SECONDS), 0.0))
            after = answer["next"]
            for moment in [] if is_json() else told.shown(answer["moments"]):
                for line in told.lines(moment, shutil.get_terminal_size().columns):
                    tell(line)
            found = patiently(lambda: client.get(job_path(job)), tell)
            if has_ended(found):
                return found
            if found["state"] == JobState.HELD and not found["held_by"]:
                raise JobHeld(_held(found))
            if time.monotonic() >= end:
                over = f"Job {job} has not ended within {limit_seconds:g} seconds; it goes on"
                raise WaitOver(f"{over}, and `spotsurfer watch {job}` follows it.")


LOOK_SECONDS = 2.0  # between looks at an array


def until_all_ended(client: Client, array: str, limit_seconds: float | None = None) -> Json:
    """Wait for the end of all tasks of an array; the first that did not succeed, else the last. Raises JobHeld, WaitOver."""
    with _in_spite_of_ctrl_c(f"Array {array} goes on", array):
        for tasks in _looks(client, array, limit_seconds, "has not ended"):
            left = [x for x in tasks if JobState(x["state"]) not in ENDED]
            if not left:
                bad = [x for x in tasks if x["state"] != JobState.SUCCEEDED]
                return client.get(job_path((bad or tasks)[-1]["id"]))
            if all(x["state"] == JobState.HELD for x in left):
                held = sum(jobs_of_row(task["tasks"]) for task in left)
                raise JobHeld(f"{held} tasks of {array} are held: `spotsurfer resume {array}` lets them go on.")
    raise AssertionError("unreachable")


def until_all_held(client: Client, name: str, limit_seconds: float) -> None:
    """Wait until tasks of an array are saved and have no machine, or have ended. Raises MoveFailed, WaitOver."""
    with _in_spite_of_ctrl_c(f"The order to {name} stands", name):
        for tasks in _looks(client, name, limit_seconds, "is not suspended"):
            left = [x for x in tasks if JobState(x["state"]) not in (*ENDED, JobState.HELD)]
            if not left:
                return
            if on := next((x for x in left if x["wish"] == Wish.RUN), None):
                raise MoveFailed(f"{array_lines.name(on)} was not suspended: it was told to go on meanwhile.")


def until_all_run(client: Client, name: str, limit_seconds: float) -> None:
    """Wait until those tasks of an array run again that had begun, or have ended. Raises JobHeld, WaitOver."""
    with _in_spite_of_ctrl_c(f"The order to {name} stands", name):
        for tasks in _looks(client, name, limit_seconds, "does not run"):
            left = [x for x in tasks if x["started_at"] and x["phase"] != "running" and JobState(x["state"]) not in ENDED]
            if not left:
                return
            if held := next((x for x in left if x["wish"] == Wish.HOLD), None):
                raise JobHeld(_held(held))


def _looks(client: Client, name: str, limit_seconds: float | None, what: str) -> Iterator[list[Json]]:
    """Rows of all tasks of an array, or of "ARRAY-[3-5]", again and again; prints how many are in which phase.

    Raises WaitOver after `limit_seconds`; `what` says then what is not.
    """
    end, told = math.inf if limit_seconds is None else time.monotonic() + limit_seconds, ""
    array, _, some = name.partition("-[")
    while True:
        found = patiently(lambda: client.get("/v1/brief", only_tasks=True, folded=True), tell)["jobs"]
        tasks = [x for x in found if x["array"] == array and (not some or array_lines.has_one_of(x, some.rstrip("]")))]
        counts = Counter[str]()
        for task in tasks:
            counts[str(task["phase"])] += jobs_of_row(task["tasks"])
        if (said := ", ".join(f"{n} {phase}" for phase, n in sorted(counts.items()))) != told:
            told = said
            tell(f"{array}: {said}")
        yield tasks
        if time.monotonic() >= end:
            raise WaitOver(f"Array {name} {what} within {limit_seconds:g} seconds; it goes on.")
        time.sleep(LOOK_SECONDS)


def _held(job: Json) -> str:
    reason = plainly(clean(job["reason"])).rstrip(".")
    return f"Job {job['id']} is held: {reason}. `spotsurfer resume {job['id']}` lets it go on."


def verdict(job: Json) -> None:
    """Raise JobEndedBadly for a job that did not succeed."""
    if job["state"] == JobState.SUCCEEDED:
        return
    code = f" with exit code {job['exit_code']}" if job["exit_code"] is not None else ""
    raise JobEndedBadly(
        f"Job {job['id']} {job['state']}{code}{': ' + plainly(clean(job['reason'])) if job['reason'] else ''}. "
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
                raise MoveFailed(_held(found))
            note = str(found["note"]) if found["note"] != found["reason"] else ""
            if (gist := re.sub(r"[0-9.]+", "", note)) not in told:  # a sentence that counts seconds is printed once
                told.add(gist)
                tell(f"Job {job} waits: {plainly(note)}")
            if time.monotonic() > end:
                raise MoveFailed(f"It has not happened within {limit_seconds:g} seconds; `spotsurfer show {job}` says why.")
            time.sleep(LOOK_SECONDS)
