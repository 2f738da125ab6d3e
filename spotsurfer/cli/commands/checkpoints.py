"""Checkpoints by name: `checkpoints`, `protect`, `unprotect`, `fork`, `rehearse`."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from spotsurfer.cli import follow
from spotsurfer.cli.common import SESSION, JobArgument, examples
from spotsurfer.cli.printing import pairs, put, put_json, say, table, when
from spotsurfer.common.units import size
from spotsurfer.model.errors import NotFound
from spotsurfer.web.client import job_path

CheckpointArgument = Annotated[
    str, typer.Argument(metavar="CHECKPOINT", help="Its name, or its number alone (the part behind the dash).")
]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="CHECKPOINT", help="Its name or number; else the newest one.", show_default=False),
]


def add(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command(epilog=examples("spotsurfer checkpoints assembly-3f9a1c"))(checkpoints)
    app.command(epilog=examples("spotsurfer protect assembly-3f9a1c 12"))(protect)
    app.command(epilog=examples("spotsurfer unprotect assembly-3f9a1c 12"))(unprotect)
    app.command(
        epilog=examples("spotsurfer fork assembly-3f9a1c --from 12 --name other-way", "spotsurfer fork assembly-3f9a1c")
    )(fork)
    app.command(epilog=examples("spotsurfer rehearse assembly-3f9a1c"))(rehearse)


def checkpoints(job: JobArgument) -> None:
    """List a job's checkpoints: what is proven, what is kept and why."""
    found: list[dict[str, Any]] = SESSION.client().get(job_path(job, "checkpoints"))["checkpoints"]
    put_json({"checkpoints": found})
    if not found:
        put(f"{job} has no checkpoint yet.")
        return
    columns = ["checkpoint", "when", "kind", "size", "new", "base", "proven", "kept"]
    table(columns, [_row(c) for c in found])


def _row(c: dict[str, Any]) -> list[str]:
    kept = c["damage"] or (c["why"] if c["keep"] else f"no: {c['why']}")
    kept = f"{c['failed']}; {kept}" if c["failed"] else kept
    protected = "protected; " if c["protected"] else ""
    return [
        c["id"],
        when(c["at"])[:16] if c["at"] else "-",
        c["kind"] or "?",
        size(c["image_bytes"]) if c["image_bytes"] is not None else "-",
        size(c["new_bytes"]) if c["new_bytes"] is not None else "-",
        c["base"].rpartition("-")[2].lstrip("0") if c["base"] else "-",
        "yes" if c["proven"] else "no",
        protected + (kept if c["counted"] else f"left behind; {kept}"),
    ]


def protect(job: JobArgument, checkpoint: CheckpointArgument) -> None:
    """Keep a checkpoint whatever the rules of retention say."""
    answer = SESSION.client().put(_protection(job, checkpoint), {})
    say({"job": job, **answer}, f"Checkpoint {answer['checkpoint']} of {job} is kept until `spotsurfer unprotect`.")


def unprotect(job: JobArgument, checkpoint: CheckpointArgument) -> None:
    """Leave a checkpoint to the rules of retention again."""
    SESSION.client().delete(_protection(job, checkpoint))
    answer = {"job": job, "checkpoint": checkpoint}
    say(answer, f"Checkpoint {checkpoint} of {job} is left to the rules of retention.")


def _protection(job: str, checkpoint: str) -> str:
    """Address of what protects it. Raises NotFound for what can't be the name of any checkpoint."""
    if not re.fullmatch(r"[0-9-]{1,40}", checkpoint):
        raise NotFound(f"{job} has no checkpoint {checkpoint!r}; `spotsurfer checkpoints {job}` lists them.")
    return job_path(job, "checkpoints", checkpoint, "protection")


def fork(
    job: JobArgument,
    origin: From = None,
    name: Annotated[str | None, typer.Option(help="Name of the copy; else the same.", show_default=False)] = None,
) -> None:
    """Copy a job as of a checkpoint: the copy has an id of its own and goes its own way from there, on a machine of its own.

    It keeps name, budget and deadline (counted anew) of the job; where two jobs have one name, commands need the id.
    """
    made = follow.follow(SESSION.client(), job_path(job, "forks"), {"checkpoint": origin, "name": name})
    say(made, f"{made['job']} is a copy of {made['parent']} and goes on from its checkpoint {made['checkpoint']}.")


def rehearse(job: JobArgument) -> None:
    """Show that the newest checkpoint comes to life elsewhere, while the job runs on; it is proven then.

    That takes a machine for some minutes, half an hour at most, which the job pays for.
    """
    done = follow.follow(SESSION.client(), job_path(job, "rehearsals"))
    put_json(done)
    put(f"Checkpoint {done['checkpoint']} of {done['job']} came to life on another machine: it is proven.")
    restored = done["restore_seconds"]
    pairs(
        [
            ("machine", f"{done['machine_seconds']:.1f} s until it had the checkpoint"),
            ("restore", f"{restored:.1f} s" if restored is not None else "-"),
            ("alive", f"{done['alive_seconds']:.1f} s after the command"),
            (
                "watched",
                f"{done['watched_seconds']:.1f} s: {done['cpu_seconds']:.2f} s of CPU, {done['printed_bytes']} bytes printed",
            ),
            ("memory", size(done["memory_bytes"])),
            *([("shared", done["brought_back"])] if done.get("brought_back") else []),
        ]
    )
