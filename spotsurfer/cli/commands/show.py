"""Questions: `list`, `show`, `why`, `watch`. They change nothing."""

from __future__ import annotations

import shlex
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from spotsurfer.cli import array_lines, follow, printing, reasons
from spotsurfer.cli.commands.usage import lately
from spotsurfer.cli.common import SESSION, JobArgument, Since, examples, known_jobs, moment_of
from spotsurfer.cli.follow import current
from spotsurfer.cli.printing import is_json, is_quiet, money, pairs, paragraph, put, put_json, table, when
from spotsurfer.common.input_errors import did_you_mean
from spotsurfer.common.plain_words import MACHINES, PHASES
from spotsurfer.common.timeline_words import machine_words, plainly
from spotsurfer.common.units import counted, duration, size
from spotsurfer.model.errors import UsageError
from spotsurfer.model.job import PRIORITIES
from spotsurfer.ports.clock import SystemClock
from spotsurfer.web.client import Client, Json, job_path

SORTS = ("age", "cost", "name", "state", "priority")  # as the controller has them


def add(app: typer.Typer) -> None:
    """Register the commands of this file."""
    lists = (
        "spotsurfer list",
        "spotsurfer list --state running --tag run=7",
        "spotsurfer list --open --sort cost --limit 10",
        "spotsurfer list --state paused --owner ada --project genomes",
        "spotsurfer list --name 'asm*' --limit 20 --json",
    )
    quietly = "spotsurfer logs $(spotsurfer list -q --limit 1)"
    app.command(name="list", epilog=f"{printing.glossary()}\n\n{examples(*lists, quietly)}")(list_jobs)
    app.command(epilog=examples("spotsurfer show assembly-3f9a1c"))(show)
    app.command(epilog=examples("spotsurfer why assembly-3f9a1c", "spotsurfer why -v --last 50 assembly-3f9a1c"))(why)
    watches = (
        "spotsurfer watch",
        "spotsurfer watch assembly-3f9a1c",
        "spotsurfer watch --since 2h assembly-3f9a1c annotation-77ab02",
        "spotsurfer watch --all -v assembly-3f9a1c",
        "spotsurfer watch --live assembly-3f9a1c",
        "spotsurfer watch --tail 0 --json",
    )
    app.command(epilog=examples(*watches))(watch)


def list_jobs(  # noqa: PLR0913 - one parameter an option
    *,
    only_open: Annotated[bool, typer.Option("--open", help="Leave out jobs that have ended.")] = False,
    states: Annotated[list[str] | None, typer.Option("--state", help="Only of this state, see below; repeatable.")] = None,
    tags: Annotated[list[str] | None, typer.Option("--tag", help="Only with this tag, name=value or name; repeatable.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only of this person.", show_default=False)] = None,
    project: Annotated[
        str | None, typer.Option(help="Only of this project; * and ? are wildcards.", show_default=False)
    ] = None,
    name: Annotated[str | None, typer.Option(help="Only of this name; * and ? are wildcards.", show_default=False)] = None,
    sort: Annotated[
        str, typer.Option(help="By age (newest first), cost (dearest first), name, state or priority (highest first).")
    ] = "age",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many.", show_default=False)] = None,
) -> None:
    """Show all jobs, newest first or as you like."""
    if sort not in SORTS:
        raise UsageError(f"--sort is {sort!r}. {did_you_mean(sort, SORTS)}")
    asked = {
        "ended": not only_open,
        "state": [printing.phase_of(word) for word in states or []],
        "tag": tags,
        "name": name,
        "sort": sort,
        "limit": limit,
        "owner": owner,
        "project": project,
    }
    short = not (is_json() or tags)  # tasks of arrays in few lines: their tags are not among what is told of very many
    client = SESSION.client()
    jobs = client.get("/v1/jobs", **asked, tasks=None if not short else False)["jobs"]
    put_json(jobs)
    brief = {"ended": not only_open, "owner": owner, "only_tasks": True, "folded": not is_quiet()}
    found = client.get("/v1/brief", **brief)["jobs"] if short else []
    tasks = array_lines.wanted(found, asked["state"], name, project)  # type: ignore[arg-type]
    if is_quiet():
        for job in [*jobs, *tasks][:limit]:
            put(job["id"])
    elif jobs or tasks:
        _table(jobs, tasks, limit)
    elif only_open or states or tags or name or owner or project:
        put("No jobs are like that; `spotsurfer list` shows all.")
    else:
        put("No jobs. `spotsurfer submit --help` shows how to make one.")


def _table(jobs: list[Json], arrays: list[Json], limit: int | None) -> None:
    columns = ["job", "state", "machine", "cpu", "saved by", "unsaved", "spent", "age"]
    rows = [*(_row(job) for job in jobs), *(array_lines.row(tasks, SystemClock().now()) for tasks in arrays)][:limit]
    ranks = [str(job["level"]) for job in (*jobs, *arrays)][:limit]
    if set(ranks) != {"0"}:
        columns, rows = [*columns, "priority"], [[*row, rank] for row, rank in zip(rows, ranks, strict=True)]
    table(columns, rows)


def _row(job: Json) -> list[str]:
    here = current(job)
    return [
        job["id"],
        printing.state(job),
        f"{here['instance_type']} {here['market']}" if here else "-",
        duration(sum(a["cpu_seconds"] for a in job["attempts"])),
        (here["protection"] if here else "") or "-",
        duration(here["unsaved_seconds"]) if here and here["unsaved_seconds"] is not None else "-",
        money(job["usd_micros"]),
        duration(max((SystemClock().now() - datetime.fromisoformat(job["submitted_at"])).total_seconds() // 1, 0.0)),
    ]


def protection(here: Json) -> str:
    """How a job is saved and why not better, for people; empty if not known."""
    return ": ".join(x for x in (here["protection"], here["unprotected"]) if x)


def taken(foretold: list[Json]) -> str | None:
    """What notices of the usual lengths would do now; None if the job does not run."""
    parts = []
    for f in foretold:
        notice = f"with {f['notice_seconds']:g} s of notice" if f["notice_seconds"] else "without notice"
        seconds = f["lost_seconds"]
        work = "the work since its newest checkpoint" if seconds is None else f"up to {duration(seconds)} of work"
        said = {"saved": "it is saved in time", "tried": f"it may be saved in time: if not, {work} is repeated"}
        parts.append(f"{notice} {said.get(f['outcome'], f'{work} is repeated')}")
    assumed = " (nothing was saved on this machine yet: its speed is assumed)"
    return "; ".join(parts) + (assumed if any(not f["measured"] for f in foretold) else "") if parts else None


def show(job: JobArgument) -> None:
    """Show everything about one job."""
    client = SESSION.client()
    found = client.get(job_path(job))
    if found["array"] and job != found["id"]:
        _show_tasks(client, found["array"])
        return
    put_json(found)
    here = current(found)
    pairs([*_facts(found), *(_now(here, found["checkpoint"]) if here else [])])
    if len(found["steps"]) > 1 or found["spec"]["steps"]:
        put()
        rows = [_step(step) for step in found["steps"]]
        begun, later = {row[0] for row in rows}, "did not run" if found["ended_at"] else "comes later"
        rows += [[step["name"], "-", "-", later, "-", "-"] for step in found["spec"]["steps"] if step["name"] not in begun]
        table(["step", "exit", "began", "ended", "cpu", "printed"], rows)
    if found["attempts"]:
        put()
        columns = ["#", "state", "machine", "market", "cpu", "saves", "frozen", "usd", "why it ended"]
        table(columns, [_attempt(a) for a in found["attempts"]])


def _show_tasks(client: Client, array: str) -> None:
    """All tasks of an array, those alike in one line."""
    found = client.get("/v1/brief", only_tasks=True, folded=not is_json())["jobs"]
    tasks = [task for task in found if task["array"] == array]
    put_json(tasks)
    now, began = SystemClock().now(), [when(task["started_at"]) if task["started_at"] else "-" for task in tasks]
    rows = [[*array_lines.row(x, now)[:3], at, plainly(x["reason"])] for x, at in zip(tasks, began, strict=True)]
    table(["tasks", "state", "machine", "began", "why"], rows)


def _facts(job: Json) -> list[tuple[str, Any]]:
    spec, phase = job["spec"], job["phase"]
    return [
        ("job", job["id"]),
        ("name", job["name"]),
        ("number", f"{job['number']}" + (f", task {job['task']} of {job['array']}" if job["array"] else "")),
        ("phase", f"{phase}: {PHASES[phase]}" if phase in PHASES else phase),
        ("note", plainly(job["note"])),
        ("command", shlex.join(spec["command"])),
        ("image", _image(job)),
        ("user", spec.get("user") or ("the image's" if spec.get("image") else "root")),
        ("secrets", _secrets(spec)),
        ("asked for", f"{counted(spec['cpus'], 'processor')}, {size(spec['memory_bytes'])}, market {spec['market']}"),
        ("owner", job["owner"] or None),
        ("project", spec["project"] or None),
        ("tags", ", ".join(f"{name}={value}" for name, value in spec["tags"].items())),
        ("priority", _priority(job)),
        ("size", job.get("size") or None),
        ("submitted", when(job["submitted_at"])),
        ("after", ", ".join(spec["after"]) or None),
        ("begins", when(job["begins_at"]) if job["begins_at"] else None),
        ("time limit", duration(spec["time_limit_seconds"]) if spec.get("time_limit_seconds") is not None else None),
        ("ended by", job["ended_by"] or None),
        ("deadline", _deadline(job)),
        ("forecast", _forecast(job.get("forecast"))),
        ("ended", when(job["ended_at"]) if job["ended_at"] else None),
        ("exit code", job["exit_code"]),
        ("failures", f"{job['failures']} of {spec['retries']} retries used" if job["failures"] else None),
        *((f"port {p['name']}", f"{p['address'] or 'no address yet'}, {p['port']} in the job") for p in job["ports"]),
        ("suspended", f"after {duration(spec['idle_seconds'])} without work" if spec["idle_seconds"] is not None else None),
        ("checkpoint", "; ".join(filter(None, (job["checkpoint"], plainly(job["checkpoint_failed"])))) or None),
        ("moves", job["moves"]),
        ("pauses", _pauses(job)),
        ("spent", f"{money(job['usd_micros'])} USD (on-demand: {money(job['usd_micros_on_demand'])})"),
        ("budget", f"{money(spec['budget_usd_micros'])} USD" if spec["budget_usd_micros"] is not None else None),
    ]


def _priority(job: Json) -> str | None:
    """The priority's number and name, and the gain by waiting; None if both are ordinary."""
    given, now = job["spec"]["priority"], job["level"]
    if given == now == 0:
        return None
    name = next((f" ({name})" for name, number in PRIORITIES.items() if number == given), "")
    return f"{given}{name}" + (f", {now} by waiting" if now != given else "")


def _deadline(job: Json) -> str | None:
    spec = job["spec"]
    if spec.get("deadline_seconds") is None:
        return None
    due = datetime.fromisoformat(job["submitted_at"]) + timedelta(seconds=spec["deadline_seconds"])
    return f"{when(due.isoformat())}, {duration(spec['work_seconds'])} of work"


def _forecast(f: Json | None) -> str | None:
    """Time to the end and its spread, the chance of the on-demand fallback, the cost."""
    if f is None:
        return None
    spread = f"{duration(f['low_seconds'])} to {duration(f['high_seconds'])}"
    chance = f"{100 * f['fallback_chance']:.0f} % chance of on-demand"
    return f"done in {duration(f['seconds'])} ({spread}), {chance}, {f['usd']:.2f} USD more"


def _image(job: Json) -> str | None:
    """The image's name, and its pinned digest."""
    name, digest = job["spec"].get("image"), job["image_digest"]
    if not name or not digest or str(name).endswith(digest):
        return name or None
    return f"{name}, pinned to {digest}"


def _secrets(spec: Json) -> str | None:
    """The names, sources and fate of a job's secrets; never a value."""
    given = [f"{name} ({s['from']}{', a file' if s['as'] == 'file' else ''})" for name, s in sorted(spec["secrets"].items())]
    how = "checkpoints may be plain" if spec["secrets_in_plain_images"] else "checkpoints are encrypted"
    return f"{', '.join(given)}; {how}" if given else None


def _now(here: Json, checkpoint: str | None) -> list[tuple[str, Any]]:
    unsaved, silent, warm = here["unsaved_seconds"], here["silent_seconds"], here["warm"]
    since = " since the newest checkpoint" if checkpoint else "; there is no checkpoint yet"
    fetched = f"{size(warm['held_bytes'])} of {size(warm['needed_bytes'])} ahead" if warm and warm["needed_bytes"] else None
    return [
        ("machine", f"{here['instance_type']} {here['market']} in {here['zone']} ({here['instance'] or 'ordered'})"),
        ("memory", size(here["memory_bytes"]) if here["memory_bytes"] else None),
        ("using", lately(here.get("usage"))),
        ("unsaved", f"{duration(unsaved)} of work{since}" if unsaved is not None else None),
        ("saving", here["save_stage"]),
        ("final save", here["fit_text"]),
        ("if taken", taken(here["foretold"])),
        ("interval", here["pace_why"]),
        ("fetched", fetched),
        (
            "stopped",
            "its machine is cut off from the store, and waits until it is sure that the job is still its own"
            if here["frozen"]
            else None,
        ),
        ("no news", f"its machine said nothing for {duration(silent)}" if silent is not None and silent >= 10 else None),
        ("saved by", protection(here) or None),
        ("processor", here["processor"] or None),
        ("stage", here.get("stage") or None),
        ("trouble", here["error"]),
    ]


def _pauses(job: Json) -> str | None:
    """How long moves paused the job."""
    pauses = [a["pause_seconds"] for a in job["attempts"] if a["pause_seconds"] is not None]
    if len(pauses) < 2:
        return f"its move stopped it for {pauses[0]:.1f} s" if pauses else None
    last, longest = pauses[-1], max(pauses)
    return f"its moves stopped it for {sum(pauses):.1f} s in all, the last for {last:.1f} s, the longest for {longest:.1f} s"


def _step(s: Json) -> list[str]:
    printed = sum(s["log_end"].get(stream, 0) - s["log"].get(stream, 0) for stream in ("out", "err"))  # not the record of times
    return [
        s["name"],
        "-" if s["exit_code"] is None else str(s["exit_code"]),
        when(s["began"]) if s["began"] else "-",
        when(s["ended"]) if s["ended"] else "runs",
        duration(s["cpu_seconds"]) if s["ended"] else "-",
        size(printed) if s["ended"] else "-",
    ]


def _attempt(a: Json) -> list[str]:
    return [
        str(a["number"]),
        MACHINES[a["state"]],
        a["instance_type"],
        a["market"],
        duration(a["cpu_seconds"]),
        str(a["saves"]),
        duration(a["frozen_seconds"]),
        money(a["usd_micros"]),
        plainly(a["reason"]),
    ]


def why(
    job: JobArgument,
    last: Annotated[int, typer.Option(min=1, max=1000, help="How many decisions.")] = 10,
    steps: Annotated[bool, typer.Option("-v", "--verbose", help="Each step in between, and all that was not taken.")] = False,
) -> None:
    """Explain why a job waits, is where it is, or moved: what was done, what was not taken and why."""
    decisions = SESSION.client().get(job_path(job, "why"), last=last)["decisions"]
    if put_json(decisions):
        return
    now = SESSION.client().get(job_path(job))
    here = current(now)
    for sentence in reasons.standing(now):
        paragraph(sentence)
    if here and here["unprotected"]:
        paragraph(f"It is saved by {protection(here)}.")
    if now.get("size"):
        paragraph(f"Its size policy: {now['size']}.")
    told = [(d, lines) for d in decisions if (lines := reasons.decided(d, steps)) or (steps and d["rejected"])]
    if rejected := [] if steps else reasons.not_taken(decisions):
        put("\nNot taken when this was decided last:")
        table(["what", "why"], rejected)
    put("\nDecisions:" if told else "\nNothing was decided about it yet.")
    for decision, lines in told:
        for number, line in enumerate(lines or [""]):
            paragraph(f"{when(decision['at']) if number == 0 else '':<23}  {line}", 25)
        for r in decision["rejected"] if steps else []:
            paragraph(f"{'':<25}not taken: {machine_words(r['what'])}: {plainly(r['why'])}", 27)


def watch(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(metavar="JOB", help="Only these jobs.", show_default=False, autocompletion=known_jobs),
    ] = None,
    *,
    since: Since = None,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=0, help="Begin with so many moments.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Begin with the first moment there is.")] = False,
    steps: Annotated[bool, typer.Option("-v", "--verbose", help="Each step in between, too.")] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Draw a screen and keep it new, until q; lines if there is no terminal.")
    ] = False,
) -> None:
    """Follow what happens: the last moments and what comes, of all jobs, or of some until they have ended."""
    then = moment_of(since) if since is not None else None
    if live and not is_json():
        from spotsurfer.cli import live as screen

        if screen.possible():
            client = SESSION.client()
            screen.show(client, list(dict.fromkeys(follow.id_of(client, job) for job in jobs or ())))
            return
    follow.watch(SESSION.client(), follow.Watched(jobs or (), then, tail, everything, steps))
