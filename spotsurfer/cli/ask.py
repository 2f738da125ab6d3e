"""Questions: `list`, `show`, `why`, `watch`, `report`. They change nothing."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Annotated, Any

import typer

from spotsurfer.cli.common import SESSION, AsJson, JobArgument, examples
from spotsurfer.cli.screen import money, pairs, put, put_json, table, when
from spotsurfer.cli.usage import lately
from spotsurfer.model.job import HOLDS, PRIORITIES, WAITS, AttemptState
from spotsurfer.units import duration, size

Json = dict[str, Any]
ALL_SAVED = ("drained", "finished")  # what an agent says last when nothing is lost with its machine
NOT_COUNTED = ["storage", "requests", "traffic"]  # of what a cloud bills: we know what machines cost
OptionalJob = Annotated[str | None, typer.Argument(metavar="[JOB]", help="Only this job.", show_default=False)]


def add(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command(name="list", epilog=examples("spotsurfer list", "spotsurfer list --open --json"))(list_jobs)
    app.command(epilog=examples("spotsurfer show assembly-3f9a1c"))(show)
    app.command(epilog=examples("spotsurfer why assembly-3f9a1c"))(why)
    app.command(epilog=examples("spotsurfer watch", "spotsurfer watch assembly-3f9a1c"))(watch)
    app.command(epilog=examples("spotsurfer report", "spotsurfer report assembly-3f9a1c --json"))(report)


def list_jobs(
    only_open: Annotated[bool, typer.Option("--open", help="Leave out jobs that have ended.")] = False, as_json: AsJson = False
) -> None:
    """Show all jobs, newest first."""
    answer = SESSION.client().get("/v1/jobs", ended=not only_open)
    if as_json:
        put_json(answer["jobs"])
    elif not answer["jobs"]:
        put("No jobs. `spotsurfer submit --help` shows how to make one.")
    else:
        jobs, columns = answer["jobs"], ["job", "phase", "machine", "cpu", "saved by", "at risk", "spent"]
        ranks = [str(job["level"]) for job in jobs]
        if set(ranks) == {"0"}:
            table(columns, [_row(job) for job in jobs])
        else:
            table([*columns, "priority"], [[*_row(job), rank] for job, rank in zip(jobs, ranks, strict=True)])


def _row(job: Json) -> list[str]:
    here = current(job)
    return [
        job["id"],
        job["phase"] + (f" ({job['exit_code']})" if job["exit_code"] else ""),
        f"{here['instance_type']} {here['market']}" if here else "-",
        duration(sum(a["cpu_seconds"] for a in job["attempts"])),
        (here["protection"] if here else "") or "-",
        duration(here["unsaved_seconds"]) if here and here["unsaved_seconds"] is not None else "-",
        money(job["usd_micros"]),
    ]


def protection(here: Json) -> str:
    """How a job is saved and why not better, for people; empty where that is not known."""
    return ": ".join(x for x in (here["protection"], here["unprotected"]) if x)


def current(job: Json) -> Json | None:
    """The attempt that holds the job, else the one that waits, else none."""
    attempts: list[Json] = job["attempts"]
    for states in (HOLDS, WAITS):
        for attempt in reversed(attempts):
            if AttemptState(attempt["state"]) in states:
                return attempt
    return None


def show(job: JobArgument, as_json: AsJson = False) -> None:
    """Show everything about one job."""
    from spotsurfer.cli.client import job_path

    found = SESSION.client().get(job_path(job))
    if as_json:
        put_json(found)
        return
    here = current(found)
    pairs([*_facts(found), *(_now(here) if here else [])])
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


def _facts(job: Json) -> list[tuple[str, Any]]:
    spec = job["spec"]
    return [
        ("job", job["id"]),
        ("name", job["name"]),
        ("phase", job["phase"]),
        ("note", job["note"]),
        ("command", " ".join(spec["command"])),
        ("image", _image(job)),
        ("user", spec.get("user") or ("the image's" if spec.get("image") else "root")),
        ("secrets", _secrets(spec)),
        ("asked for", f"{spec['cpus']} CPUs, {size(spec['memory_bytes'])}, market {spec['market']}"),
        ("priority", _priority(job)),
        ("size", job.get("size") or None),
        ("submitted", when(job["submitted_at"])),
        ("deadline", _deadline(job)),
        ("forecast", _forecast(job.get("forecast"))),
        ("ended", when(job["ended_at"]) if job["ended_at"] else None),
        ("exit code", job["exit_code"]),
        ("failures", f"{job['failures']} of {spec['retries']} retries used" if job["failures"] else None),
        *((f"port {p['name']}", f"{p['address'] or 'no address yet'}, {p['port']} in the job") for p in job["ports"]),
        ("suspended", _asleep(job)),
        ("checkpoint", job["checkpoint"]),
        ("moves", job["moves"]),
        ("pauses", _pauses(job)),
        ("spent", f"{money(job['usd_micros'])} USD (on-demand: {money(job['usd_micros_on_demand'])})"),
    ]


def _asleep(job: Json) -> str | None:
    """What its user wants done with a job that does nothing."""
    after = job["spec"].get("idle_seconds")
    return None if after is None else f"after {duration(after)} without work"


def _priority(job: Json) -> str | None:
    """Its number and name, and what it gained by waiting; nothing where both are ordinary."""
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
    """Time to the end and its spread, the chance of falling back, the cost."""
    if f is None:
        return None
    spread = f"{duration(f['low_seconds'])} to {duration(f['high_seconds'])}"
    chance = f"{100 * f['fallback_chance']:.0f} % chance of on-demand"
    return f"done in {duration(f['seconds'])} ({spread}), {chance}, {f['usd']:.2f} USD more"


def _image(job: Json) -> str | None:
    """Its name, and what that is pinned to."""
    name, digest = job["spec"].get("image"), job["image_digest"]
    if not name or not digest or str(name).endswith(digest):
        return name or None
    return f"{name}, pinned to {digest}"


def _secrets(spec: Json) -> str | None:
    """What it is given, where that came from, and what becomes of it; never a value."""
    given = [f"{name} ({s['from']}{', a file' if s['as'] == 'file' else ''})" for name, s in sorted(spec["secrets"].items())]
    how = "checkpoints may be plain" if spec["secrets_in_plain_images"] else "checkpoints are encrypted"
    return f"{', '.join(given)}; {how}" if given else None


def _now(here: Json) -> list[tuple[str, Any]]:
    unsaved, silent = here["unsaved_seconds"], here["silent_seconds"]
    return [
        ("machine", f"{here['instance_type']} {here['market']} in {here['zone']} ({here['instance'] or 'ordered'})"),
        ("memory", size(here["memory_bytes"]) if here["memory_bytes"] else None),
        ("using", lately(here.get("usage"))),
        ("at risk", f"{duration(unsaved)} of work since the newest checkpoint" if unsaved is not None else None),
        ("saving", here["save_stage"]),
        ("final save", here["fit_text"]),
        ("saves", here["pace_why"]),
        ("fetched", _fetched(here["warm"])),
        ("frozen", "held still: its agent can't be sure to own it" if here["frozen"] else None),
        ("silent", duration(silent) if silent is not None and silent >= 10 else None),
        ("saved by", protection(here) or None),
        ("processor", here["processor"] or None),
        ("stage", here.get("stage") or None),
        ("trouble", here["error"]),
    ]


def _fetched(warm: Json | None) -> str | None:
    return f"{size(warm['held_bytes'])} of {size(warm['needed_bytes'])} ahead" if warm and warm["needed_bytes"] else None


def _pauses(job: Json) -> str | None:
    """How long moves stopped the job."""
    pauses = [a["pause_seconds"] for a in job["attempts"] if a["pause_seconds"] is not None]
    return f"the last move stopped it for {pauses[-1]:.1f} s, the longest {max(pauses):.1f} s" if pauses else None


def _step(s: Json) -> list[str]:
    printed = sum(s["log_end"].values()) - sum(s["log"].values())
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
        a["state"],
        a["instance_type"],
        a["market"],
        duration(a["cpu_seconds"]),
        str(a["saves"]),
        duration(a["frozen_seconds"]),
        money(a["usd_micros"]),
        a["reason"],
    ]


def why(
    job: JobArgument,
    last: Annotated[int, typer.Option(min=1, max=1000, help="How many decisions.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Explain the last decisions: what was done, what was rejected and why."""
    from spotsurfer.cli.client import job_path

    decisions = SESSION.client().get(job_path(job, "why"), last=last)["decisions"]
    if as_json:
        put_json(decisions)
        return
    now = SESSION.client().get(job_path(job))
    here = current(now)
    if here and here["unprotected"]:
        put(f"It is saved by {protection(here)}.")
    if now.get("size"):
        put(f"Its size policy: {now['size']}.")
    if not decisions:
        put("Nothing was decided about it yet.")
    for decision in decisions:
        put(f"{when(decision['at'])}  {decision['note']}")
        for done in decision["done"]:
            put(f"    done      {done}")
        for rejected in decision["rejected"]:
            put(f"    rejected  {rejected['what']}: {rejected['why']}")


def watch(job: OptionalJob = None, as_json: AsJson = False) -> None:
    """Follow the timeline live; of one job until it ends."""
    from spotsurfer.cli import follow

    follow.watch(SESSION.client(), job, as_json)


def report(job: OptionalJob = None, as_json: AsJson = False) -> None:
    """Say what machines cost, what on-demand would have cost, what was repeated and how long jobs stood still.

    Storage, requests to it and traffic are not counted: the cloud's own bill has them.
    """
    from spotsurfer.cli.client import job_path

    client = SESSION.client()
    lines = client.get("/v1/costs", job=job)["costs"]
    jobs = [client.get(job_path(job))] if job else client.get("/v1/jobs")["jobs"]
    summary = summarize(lines, jobs)
    if as_json:
        put_json({"attempts": lines, **summary})
        return
    rows = [_cost(line) for line in lines]
    total = _cost({"job": "total", "attempt": "", "pool": "", "market": "", "ended": "", **_sum(lines)})
    if not rows:
        put("Nothing was spent.")
        return
    table(["job", "#", "machine", "market", "time", "usd", "list", "saved", "ended"], [*rows, total])
    put()
    pairs(
        [
            ("spent", f"{money(summary['usd_micros'])} USD"),
            ("list price", f"{money(summary['usd_micros_on_demand'])} USD for the same machine-hours on demand"),
            ("saved", f"{money(summary['usd_micros_saved'])} USD ({summary['saved_percent']:.0f} %)"),
            ("work repeated", duration(summary["repeated_seconds"])),
            ("time frozen", duration(summary["frozen_seconds"])),
            ("moves", summary["moves"]),
            ("stopped by moves", duration(summary["pause_seconds"])),
            ("not counted", f"{', '.join(summary['not_counted'])}: see the cloud's own bill"),
        ]
    )


def summarize(lines: list[Json], jobs: list[Json]) -> Json:
    """The bottom of the bill."""
    total = _sum(lines)
    spent, listed = total["usd_micros"], total["usd_micros_on_demand"]
    return {
        "usd_micros": spent,
        "usd_micros_on_demand": listed,
        "usd_micros_saved": listed - spent,
        "saved_percent": 100 * (listed - spent) / listed if listed else 0.0,
        "repeated_seconds": sum(repeated_seconds(job) for job in jobs),
        "frozen_seconds": total["frozen_seconds"],
        "moves": sum(job["moves"] for job in jobs),
        "pause_seconds": sum(a["pause_seconds"] or 0.0 for job in jobs for a in job["attempts"]),
        "not_counted": NOT_COUNTED,
    }


def repeated_seconds(job: Json) -> float:
    """Running time whose results were lost with their machine and had to be made again, as far as its agent still told.

    An attempt whose agent said neither drained nor finished takes along what it did since its newest durable checkpoint;
    it is repeated where a later attempt went on.
    """
    granted = [a for a in job["attempts"] if a["granted_at"] is not None]
    nothing = job["spec"]["engine"] == "none"  # drained without saving
    lost = [a for a, after in pairwise(granted) if nothing or a["agent_state"] not in ALL_SAVED or _began_again(a, after)]
    return float(sum(a["unsaved_seconds"] or 0.0 for a in lost))


def _began_again(a: Json, after: Json) -> bool:
    """It was drained in a step that is not protected, before there was any checkpoint."""
    return bool(a["agent_state"] == "drained" and after["from_checkpoint"] is None)


def _sum(lines: list[Json]) -> Json:
    keys = ("seconds", "usd_micros", "usd_micros_on_demand", "frozen_seconds", "cpu_seconds")
    return {key: sum(line[key] for line in lines) for key in keys}


def _cost(line: Json) -> list[str]:
    return [
        line["job"],
        str(line["attempt"]),
        line["pool"].rsplit("/", 1)[-1],
        line["market"],
        duration(line["seconds"]),
        money(line["usd_micros"]),
        money(line["usd_micros_on_demand"]),
        money(line["usd_micros_on_demand"] - line["usd_micros"]),
        line["ended"],
    ]
