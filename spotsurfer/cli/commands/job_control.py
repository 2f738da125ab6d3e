"""Commands that change a job, from `checkpoint` to `cancel`. The controller records them; the agents carry them out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import typer

from spotsurfer.cli import array_lines, follow
from spotsurfer.cli.common import SESSION, JobArgument, Wait, examples, known_jobs, timeout_seconds
from spotsurfer.cli.follow import current
from spotsurfer.cli.printing import complain, confirm, is_json, put_json, say, tell
from spotsurfer.common.units import counted
from spotsurfer.model.errors import (
    Conflict,
    MoveFailed,
    RestoreFailed,
    RestoreRefused,
    SpotsurferError,
    Unprotected,
    UsageError,
)
from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import JobState, Wish
from spotsurfer.model.market import Market
from spotsurfer.web.client import Client, Json, job_path

Timeout = Annotated[str, typer.Option("--timeout", help="With --wait: give up after so long.")]
Jobs = Annotated[
    list[str] | None,
    typer.Argument(metavar="JOB", help="Ids or names.", show_default=False, autocompletion=known_jobs),
]
Owner = Annotated[str | None, typer.Option("--owner", help="Those of this person.", show_default=False)]
Project = Annotated[
    str | None, typer.Option("--project", help="Those of this project; * and ? are wildcards.", show_default=False)
]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Those with this tag, name=value; repeatable: with all of them.")]
# Error by the state of a failed attempt.
FAILURES: dict[str, type[SpotsurferError]] = {"restore_refused": RestoreRefused, "restore_failed": RestoreFailed}
# In these states an attempt that was ordered for a move has not failed yet.
UNDER_WAY = frozenset({A.PLANNED, A.REQUESTED, A.BOOTING, A.READY, A.RESTORING})
THERE = frozenset({A.RUNNING, A.DRAINING, A.DRAINED, A.FINISHED})


def add(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command(epilog=examples("spotsurfer checkpoint assembly-3f9a1c --wait"))(checkpoint)
    app.command(
        epilog=examples(
            "spotsurfer move assembly-3f9a1c",
            "spotsurfer move assembly-3f9a1c --to r6i.xlarge --market on-demand --wait",
        )
    )(move)
    app.command(epilog=examples("spotsurfer signal assembly-3f9a1c USR1"))(signal)
    app.command(epilog=examples("spotsurfer wait assembly-3f9a1c", "spotsurfer wait sweep-3fa1b2 --timeout 2h"))(wait)
    suspends = ("spotsurfer suspend assembly-3f9a1c --wait", "spotsurfer suspend --tag run=7", "spotsurfer suspend --all")
    app.command(epilog=examples(*suspends))(suspend)
    resumes = (
        "spotsurfer resume job-1 --from 12",
        "spotsurfer resume --all --owner ada",
        "spotsurfer resume --tag run=7 --yes",
    )
    app.command(epilog=examples(*resumes))(resume)
    app.command(
        epilog=examples("spotsurfer priority assembly-3f9a1c high", "spotsurfer priority assembly-3f9a1c -5"),
        context_settings={"ignore_unknown_options": True},  # a number below zero is none
    )(priority)
    app.command(
        epilog=examples("spotsurfer cancel assembly-3f9a1c", "spotsurfer cancel --tag run=7", "spotsurfer cancel --all")
    )(cancel)


def checkpoint(job: JobArgument, wait: Wait = False, timeout: Timeout = "1h") -> None:
    """Save the job while it runs on."""
    limit, client = timeout_seconds(timeout), SESSION.client()
    job, before = _known(client, job)
    answer = {"job": job, **client.post(job_path(job, "checkpoint"))}
    number = int(answer["number"])
    if not wait:
        say(answer, f"Asked for checkpoint {number} of {job}; --wait waits until it is durable.")
        return

    def look(found: Json, moments: list[Json]) -> str | None:
        if found["checkpoint"] and int(found["checkpoint"].rpartition("-")[2]) >= number:
            return str(found["checkpoint"])
        _saved(found, moments, "The checkpoint failed, the job runs on")
        return None

    name = follow.until(client, job, look, limit, before)
    say({**answer, "checkpoint": name}, f"Checkpoint {name} of {job} is durable.")


def _known(client: Client, job: str) -> tuple[str, int]:
    """The job's id, and the number of its newest moment: what comes later may be about the order that follows."""
    job = follow.id_of(client, job)
    return job, int(client.get(job_path(job, "timeline"), last=1)["next"])


def _saved(job: Json, moments: list[Json], otherwise: str) -> None:
    """Raise if a save failed: Unprotected if no save of this job can succeed, else MoveFailed."""
    failed = [m["text"] for m in moments if m["kind"] == "alert" and m["data"].get("error_kind") == "save"]
    here = current(job)
    if failed:
        kind = Unprotected if here and here["protection"] == "none" else MoveFailed
        raise kind(f"{otherwise}: {failed[-1]}")


def move(
    job: JobArgument,
    to: Annotated[str | None, typer.Option("--to", metavar="TYPE", help="Instance type; else any other machine.")] = None,
    market: Annotated[str | None, typer.Option(help="spot or on-demand.", show_default=False)] = None,
    wait: Wait = False,
    timeout: Timeout = "1h",
) -> None:
    """Take the job to another machine; if that fails it runs on where it is. One with engine "none" begins again there."""
    if market is not None and market not in list(Market):
        raise UsageError(f"--market is {market!r}, expected spot or on-demand.")
    limit, client = timeout_seconds(timeout), SESSION.client()
    job, before = _known(client, job)
    answer = {"job": job, **client.post(job_path(job, "move"), {"instance_type": to, "market": market})}
    if not wait:
        say(answer, f"Asked {job} to move; --wait waits until it runs elsewhere.")
        return
    where = follow.until(client, job, lambda found, moments: _moved(found, moments, answer["number"]), limit, before)
    say({**answer, "machine": where}, f"{job} runs on {where}.")


def _machine(attempt: Json) -> str:
    return f"{attempt['instance_type']} ({attempt['market']}, {attempt['zone']})"


def _moved(job: Json, moments: list[Json], number: int) -> str | None:
    """The machine it moved to; None while that is open. Raises MoveFailed if the request is settled without a move."""
    serving = [a for a in job["attempts"] if a["for_move"] == number]
    for attempt in serving:
        if A(attempt["state"]) in THERE:
            return _machine(attempt)
    if follow.has_ended(job):
        code = f" with exit code {job['exit_code']}" if job["exit_code"] is not None else ""
        raise MoveFailed(f"{job['id']} did not move: it ended before it could ({job['state']}{code}).")
    settled = job["move"] is None or job["move"]["number"] > number
    if settled and not any(A(a["state"]) in UNDER_WAY for a in serving):
        said = [m["text"] for m in moments if m["kind"] == "wish" and "move" in m["text"] and "failed" in m["text"]]
        held = f"it is suspended: {job['reason']}" if job["wish"] == Wish.HOLD else "the request was dropped"
        reason = said[-1] if said else next((a["reason"] for a in reversed(serving) if a["reason"]), held)
        raise failure(serving)(f"{job['id']} did not move: {reason.removeprefix('the move failed: ').rstrip('.')}.")
    return None


def signal(
    job: JobArgument,
    name: Annotated[
        str,
        typer.Argument(metavar="SIGNAL", help="Like USR1; B:USR1: its command alone, S:USR1: all others.", show_default=False),
    ],
) -> None:
    """Send a signal to the processes of a job that runs."""
    answer = SESSION.client().post(job_path(job, "signal"), {"signal": name.removeprefix("SIG")})
    say({"job": job, **answer}, f"{job} is sent SIG{name.removeprefix('SIG')}.")


def wait(
    job: JobArgument,
    timeout: Annotated[str | None, typer.Option("--timeout", help="Give up after so long; the job goes on.")] = None,
) -> None:
    """Wait until a job, or all tasks of an array, have ended; 16 if one failed, 41 if it is held."""
    client, limit = SESSION.client(), None if timeout is None else timeout_seconds(timeout)
    found = client.get(job_path(job))
    several = found["array"] and job != found["id"]
    end = follow.until_all_ended(client, found["array"], limit) if several else follow.until_ended(client, found["id"], limit)
    put_json(end)
    follow.verdict(end)


def suspend(  # noqa: PLR0913 - one parameter an option
    jobs: Jobs = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="All jobs that are neither held, suspended nor ended.")] = False,
    tags: Tags = None,
    owner: Owner = None,
    project: Project = None,
    wait: Wait = False,
    timeout: Timeout = "1h",
) -> None:
    """Save jobs, give their machines back, keep them in storage until `resume`. One with engine "none" begins again then."""
    limit, client = timeout_seconds(timeout), SESSION.client()
    chosen = _chosen(jobs, every, Filter(tags, owner, project), wishes=[Wish.RUN])
    _each(client, chosen, lambda job: _suspend(client, job, limit if wait else None), "suspended", not jobs)


def _suspend(client: Client, job: str, limit_seconds: float | None) -> tuple[Json, str]:
    """The answer and a sentence about it; waits unless there is no limit."""
    if (tasks := _of_tasks(client, job, "hold")) is not None:
        if limit_seconds is not None:
            follow.until_all_held(client, tasks["job"], limit_seconds)
        saved, until = "will be" if limit_seconds is None else "are", f"held until `spotsurfer resume {tasks['job']}`"
        return tasks, f"{tasks['job']}: all that have not ended {saved} saved, and are {until}."
    job, before = _known(client, job)
    answer = client.post(job_path(job, "hold"))
    until = f"held until `spotsurfer resume {answer['job']}`"
    if limit_seconds is None:
        return answer, f"{answer['job']} will be saved, and is {until}."

    def look(found: Json, moments: list[Json]) -> str | None:
        if found["state"] == JobState.HELD:
            return str(found["checkpoint"] or "") or "the beginning"
        _saved(found, moments, "It runs on and is tried again every minute, until `resume`")
        if found["wish"] == Wish.RUN:
            raise MoveFailed(f"{job} was not suspended: it was told to go on meanwhile.")
        return None

    kept = follow.until(client, job, look, limit_seconds, before)
    return {**answer, "state": "held", "checkpoint": kept}, f"{answer['job']} is saved at {kept} and {until}."


def _of_tasks(client: Client, job: str, order: str) -> Json | None:
    """The answer to an order to several tasks of an array; None if `job` means one job."""
    found = client.get(job_path(job))
    return client.post(job_path(job, order)) if found["array"] and job != found["id"] else None


def resume(  # noqa: PLR0913 - one parameter an option
    jobs: Jobs = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="All jobs that are held or suspended.")] = False,
    tags: Tags = None,
    owner: Owner = None,
    project: Project = None,
    origin: Annotated[
        str | None,
        typer.Option("--from", metavar="CHECKPOINT", help="Go back to this one; the job may be held, running or ended."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before several jobs go on.")] = False,
    wait: Wait = False,
    timeout: Timeout = "1h",
) -> None:
    """Let suspended or held jobs go on; with --from, any job from a checkpoint of your choice.

    A job that runs is saved first; where that fails it runs on and does not go back. On a terminal it is asked whether all that
    were found are to go on. Each that could not be resumed is named with the reason, and the exit code is that of the first.
    """
    limit, those = timeout_seconds(timeout), Filter(tags, owner, project)
    chosen = _chosen(jobs, every, those, combined=True, state=["held", "suspended"])
    if origin is not None and len(chosen) > 1:
        raise UsageError("--from is a checkpoint of one job: name one.")
    if not jobs and len(chosen) > 1 and not (yes or is_json()) and sys.stdin.isatty():
        tell(f"Held: {', '.join(chosen)}")
        if not typer.confirm(f"Let these {len(chosen)} jobs go on?", err=True):
            tell("None was resumed.")
            return
    client = SESSION.client()
    _each(client, chosen, lambda job: _resume(client, job, origin, limit if wait else None), "resumed", not jobs)


def _resume(client: Client, job: str, origin: str | None, limit_seconds: float | None) -> tuple[Json, str]:
    """The answer and a sentence about it; waits unless there is no limit."""
    if origin is None and (tasks := _of_tasks(client, job, "resume")) is not None:
        if limit_seconds is None:
            return tasks, f"{tasks['job']}: all that were suspended go on as soon as they have machines."
        follow.until_all_run(client, tasks["job"], limit_seconds)
        return tasks, f"{tasks['job']}: all that had begun run again."
    job, before = _known(client, job)
    old = len(client.get(job_path(job))["attempts"])
    if origin is not None:
        answer = client.post(job_path(job, "go-back"), {"checkpoint": origin})
        text = f"goes back to checkpoint {origin}"
    else:
        answer, text = client.post(job_path(job, "resume")), "goes on"
    if limit_seconds is None:
        return answer, f"{answer['job']} {text} as soon as it has a machine."
    where = follow.until(
        client, job, lambda found, moments: _resumed(found, moments, old, origin is None), limit_seconds, before
    )
    return {**answer, "machine": where}, f"{answer['job']} runs on {where}."


def _resumed(job: Json, moments: list[Json], old: int, may_stay: bool = False) -> str | None:
    """The machine it goes on; None while that is open. Raises the kind of failure if the job is held again instead.

    `old`: number of its attempts before. `may_stay`: a job that was not suspended yet may go on in place.
    """
    tried = job["attempts"][old:]
    stayed = [a for a in job["attempts"][:old] if may_stay and A(a["state"]) is A.RUNNING]
    for attempt in [*tried, *stayed]:
        if A(attempt["state"]) in THERE:
            return _machine(attempt)
    if dropped := [m["text"] for m in moments if m["kind"] == "wish" and m["text"].startswith("going back to")]:
        raise MoveFailed(f"{job['id']} did not go back: {dropped[-1].rstrip('.')}.")
    if any(map(follow.was_held, moments)):
        raise failure(tried)(f"{job['id']} is held again: {job['reason'].rstrip('.')}.")
    return None


def failure(attempts: list[Json]) -> type[SpotsurferError]:
    """The kind of failure of the newest attempts: it decides the next step and the exit code."""
    for attempt in reversed(attempts):
        for mark, kind in FAILURES.items():
            if attempt[mark]:
                return kind
    return MoveFailed


def priority(
    job: JobArgument,
    number: Annotated[
        str, typer.Argument(metavar="N", help="low, normal, high or a whole number from -100 to 100.", show_default=False)
    ],
) -> None:
    """Change how much the job counts: where limits leave no room for all, a higher one suspends a lower one."""
    from spotsurfer.jobspec.keys import read_priority

    try:
        wanted = read_priority(number)
    except ValueError as e:
        raise UsageError(f"The priority {e}.") from None
    answer = SESSION.client().put(job_path(job, "priority"), {"priority": wanted})
    say(answer, f"{answer['job']} has priority {answer['priority']} from now on.")


def cancel(
    jobs: Jobs = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="All jobs that have not ended.")] = False,
    tags: Tags = None,
    owner: Owner = None,
    project: Project = None,
) -> None:
    """End jobs without results."""
    chosen, client = _chosen(jobs, every, Filter(tags, owner, project)), SESSION.client()

    def end(job: str) -> tuple[Json, str]:
        answer = client.post(job_path(job, "cancel"))
        return answer, f"{answer['job']} is being cancelled."

    _each(client, chosen, end, "cancelled", not jobs)


class Filter(NamedTuple):
    """What jobs must have to be meant."""

    tags: Sequence[str] | None
    owner: str | None
    project: str | None


def _chosen(
    jobs: Sequence[str] | None,
    every: bool,
    those: Filter,
    wishes: Sequence[Wish] = (Wish.RUN, Wish.HOLD),
    combined: bool = False,
    **which: object,
) -> list[str]:
    """The named jobs, or the ids of jobs that match the filters, have not ended, and may get one of these wishes.

    `combined`: --all may stand beside filters; where an order can't be taken back, that would be a slip. Raises UsageError.
    """
    ways = (bool(jobs), every or any(those)) if combined else (bool(jobs), every, any(those))
    if sum(ways) != 1:
        raise UsageError("Name jobs, or say --all, or which: --tag name=value, --owner, --project.")
    if jobs:
        return list(dict.fromkeys(jobs))
    client, whole = SESSION.client(), not those.tags  # tasks of an array may differ in their tags, and in nothing else
    asked = {"tag": list(those.tags or []), "owner": those.owner, "project": those.project, **which}
    found = client.get("/v1/jobs", ended=False, tasks=False if whole else None, **asked)["jobs"]
    tasks = client.get("/v1/brief", ended=False, owner=those.owner, only_tasks=True, folded=True)["jobs"] if whole else []
    states: list[str] = which.get("state", [])  # type: ignore[assignment]
    arrays = [{**task, "id": task["array"]} for task in array_lines.wanted(tasks, states, None, those.project)]
    return list(dict.fromkeys(str(job["id"]) for job in (*found, *arrays) if job["wish"] in wishes))


def _each(
    client: Client,
    jobs: Sequence[str],
    act: Callable[[str], tuple[Json, str]],
    done: str,
    looked_up: bool,
) -> None:
    """Order each job in turn; report refusals at once, and raise them after the last one.

    Jobs that a filter found may have ended meanwhile: that is no failure.
    """
    if len(jobs) == 1 and not looked_up:
        say(*act(jobs[0]))
        return
    answers, refused, ended = list[Json](), list[tuple[str, SpotsurferError]](), 0
    for job in jobs:
        try:
            answer, text = act(job)
        except SpotsurferError as e:
            if looked_up and isinstance(e, Conflict) and follow.has_ended(client.get(job_path(job))):
                ended += 1
                continue
            refused.append((job, e))
            complain(str(e))
        else:
            answers.append(answer)
            confirm(text)
    put_json({"jobs": answers, "refused": [{"job": job, "error": type(e).__name__, "message": str(e)} for job, e in refused]})
    if not jobs:
        confirm("There is no such job.")
    if ended:
        tell(f"{ended} of {counted(len(jobs), 'job')} had ended meanwhile.")
    if refused:
        raise type(refused[0][1])(f"{len(refused)} of {counted(len(jobs), 'job')} could not be {done}.")
