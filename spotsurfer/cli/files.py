"""Bytes of a job: `logs` and `outputs`."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from urllib.parse import quote

import typer

from spotsurfer.cli.common import SESSION, AsJson, JobArgument, examples
from spotsurfer.cli.screen import put, put_json, table, tell, when
from spotsurfer.hints import did_you_mean
from spotsurfer.jobcheck import leaves_folder
from spotsurfer.model.errors import DISK_FULL, Conflict, NotFound, SpotsurferError, StoreDamaged, UsageError
from spotsurfer.model.steps import MAIN
from spotsurfer.units import size

if TYPE_CHECKING:
    from spotsurfer.cli.client import Client

FOLLOW_SECONDS = 10.0
LOOK_SECONDS = 0.2
TELL_SECONDS, TELL_BYTES = 2.0, 64 << 20


def add(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command(
        epilog=examples(
            "spotsurfer logs assembly-3f9a1c",
            "spotsurfer logs -f --stderr assembly-3f9a1c",
            "spotsurfer logs --step setup assembly-3f9a1c",
            "spotsurfer logs --live assembly-3f9a1c",
        )
    )(logs)
    app.command(
        epilog=examples(
            "spotsurfer outputs assembly-3f9a1c",
            "spotsurfer outputs assembly-3f9a1c --to results",
            "spotsurfer outputs assembly-3f9a1c --partial --to so-far",
        )
    )(outputs)


def logs(  # noqa: PLR0913 - one parameter an option
    job: JobArgument,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job ends.")] = False,
    stdout: Annotated[bool, typer.Option("--stdout", help="Only the job's standard output.")] = False,
    stderr: Annotated[bool, typer.Option("--stderr", help="Only the job's standard error.")] = False,
    attempt: Annotated[int | None, typer.Option(min=1, help="As it was under this attempt.", show_default=False)] = None,
    step: Annotated[str | None, typer.Option(help="Only what this step printed.", show_default=False)] = None,
    live: Annotated[bool, typer.Option("--live", help="Follow it on its machine, over SSH: nothing is waited for.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the job's output, in one piece across all moves: its stdout on stdout, its stderr on stderr."""
    if step is not None and attempt is not None:
        raise UsageError("--step and --attempt can't be combined: a step's output goes over all its attempts.")
    if live and (step is not None or attempt is not None):
        raise UsageError("--live shows what is printed now: it can't be combined with --step or --attempt.")
    chosen = [name for name, wanted in (("out", stdout), ("err", stderr)) if wanted] or ["out", "err"]
    pieces = _live(job, chosen) if live else _pieces(SESSION.client(), job, chosen, Part(attempt, step), follow)
    if as_json and not (follow or live):
        texts = {"stdout" if name == "out" else "stderr": bytearray() for name in chosen}
        for name, data in pieces:
            texts["stdout" if name == "out" else "stderr"] += data
        put_json({name: bytes(data).decode(errors="replace") for name, data in texts.items()})
        return
    for name, data in pieces:
        if as_json:
            put_json({"stream": "stdout" if name == "out" else "stderr", "text": data.decode(errors="replace")}, compact=True)
        else:
            # One stream alone goes to stdout, so that `logs --stderr JOB | less` works.
            target = sys.stdout if name == "out" or len(chosen) == 1 else sys.stderr
            target.buffer.write(data)
            target.flush()


def _live(job: str, streams: list[str]) -> Iterator[tuple[str, bytes]]:
    from spotsurfer.cli import live, login

    return live.pieces(SESSION.client(), job, streams, login.log_in)


class Part(NamedTuple):
    """Which part of the output: as it was under an attempt, or of one step."""

    attempt: int | None = None
    step: str | None = None


def _pieces(client: Client, job: str, streams: list[str], part: Part, follow: bool) -> Iterator[tuple[str, bytes]]:
    from spotsurfer.cli.client import job_path, patiently
    from spotsurfer.cli.follow import has_ended

    at: dict[str, int] = {}
    while True:
        # Asked before the log is read: what an ended job wrote is all there when the log is read after it.
        seen = patiently(lambda: client.get(job_path(job)), tell) if follow or part.step else {}
        begin, end = _bounds(seen, part.step) if part.step else ({}, {})
        at = at or {name: begin.get(name, 0) for name in streams}
        ended = not follow or bool(end) or has_ended(seen)
        grew = False
        for name in streams:
            # The last stream waits for news, if the others had none.
            wait = FOLLOW_SECONDS / len(streams) if not ended and not grew and name == streams[-1] else 0.0
            while piece := _read(client, job, name, Ask(at[name], part.attempt, wait))[: _left(end, name, at[name])]:
                at[name] += len(piece)
                grew, wait = True, 0.0
                yield name, piece
        if ended:
            return


def _left(end: dict[str, int], stream: str, at: int) -> int | None:
    """Bytes of a stream that belong to the step still; None = its end is not known yet."""
    return max(end.get(stream, 0) - at, 0) if end else None


def _bounds(seen: dict[str, Any], step: str) -> tuple[dict[str, int], dict[str, int]]:
    """Where a step's output begins and ends, by stream; without an end while it runs. Raises NotFound, Conflict."""
    run = next((s for s in seen["steps"] if s["name"] == step), None)
    if run is not None:
        return run["log"], run["log_end"] if run["exit_code"] is not None else {}
    names = [s["name"] for s in seen["spec"]["steps"]] or [MAIN]
    if step in names:
        raise Conflict(f"Step {step} of {seen['id']} has not begun yet.")
    raise NotFound(f"{seen['id']} has no step {step!r}. {did_you_mean(step, names)}")


class Ask(NamedTuple):
    """Which piece of a log."""

    offset: int
    attempt: int | None
    wait: float


def _read(client: Client, job: str, stream: str, ask: Ask) -> bytes:
    from spotsurfer.cli.client import job_path, patiently

    return patiently(lambda: client.data(job_path(job, "log", stream), **ask._asdict()), tell)


def outputs(
    job: JobArgument,
    to: Annotated[Path | None, typer.Option("--to", metavar="DIR", help="Download into this folder.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
    partial: Annotated[bool, typer.Option("--partial", help="What a running job has written so far.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the results of a job that has ended, or download them; each file is checked against its digest."""
    from spotsurfer.cli.client import job_path

    client = SESSION.client()
    place = job_path(job, "outputs") if not partial else _partial(client, job)
    told = client.get(place)
    found = told["outputs"]
    if to is not None:
        if (total := sum(f["size"] for f in found)) > TELL_BYTES:
            tell(f"Downloading {len(found)} files, {size(total)} …")
        for file in found:
            file["to"] = str(_download(client, place, file, to, force))
    if as_json:
        put_json(told if partial else found)
        return
    if partial:
        put(f"As they were at {when(told['at'])} in the step {told['step']}; the job runs on.")
    if to is not None:
        put(f"{len(found)} files, {size(sum(f['size'] for f in found))}, are in {to}{_checked(found)}.")
    elif not found:
        put("The job has no outputs: its `outputs` patterns matched nothing" + (" so far." if partial else "."))
    else:
        table(["size", "path"], [[size(f["size"]), f["path"]] for f in found])


def _checked(found: list[dict[str, Any]]) -> str:
    old = sum(1 for f in found if not f["sha256"])
    if old:
        return f"; {old} of them have no digest to be checked against: they were published by an older agent"
    return ", each as its machine published it (SHA-256)" if found else ""


def _partial(client: Client, job: str) -> str:
    """Ask a running job for its outputs so far, and wait until they are there: where they are."""
    from spotsurfer.cli.client import job_path, patiently

    number = client.post(job_path(job, "partials"))["number"]
    place, began, told = job_path(job, "partials", str(number)), time.monotonic(), False
    while not patiently(lambda: client.get(place), tell)["done"]:
        if not told and time.monotonic() - began > TELL_SECONDS:
            tell("Waiting until its machine has uploaded what there is …")
            told = True
        time.sleep(LOOK_SECONDS)
    return place


def _download(client: Client, place: str, file: dict[str, Any], to: Path, force: bool) -> Path:
    """One file, complete and as it was published under its name, or not at all."""
    if why := leaves_folder(file["path"]):
        raise SpotsurferError(f"The controller offers {file['path']!r}, which {why}: it is not written.")
    target = to / str(file["path"])
    if target.exists() and not force:
        raise UsageError(f"{target} is there already: name another folder, or overwrite with --force.")
    try:
        _write(client, f"{place}/{quote(file['path'], safe='/')}", file, target)
    except OSError as e:
        if e.errno in DISK_FULL:
            raise
        raise UsageError(f"{target} can't be written ({e.strerror}): name another folder after --to.") from e
    return target


def _write(client: Client, path: str, file: dict[str, Any], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        count, digest = 0, hashlib.sha256()
        with part.open("wb") as opened:
            for piece in client.download(path):
                count += opened.write(piece)
                digest.update(piece)
        _check(file, count, digest.hexdigest())
        part.replace(target)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _check(file: dict[str, Any], count: int, digest: str) -> None:
    """Whether what came is what was published. Raises SpotsurferError, StoreDamaged."""
    if count != file["size"]:
        raise SpotsurferError(f"{file['path']} came with {count} bytes instead of {file['size']}: repeat the command.")
    if file["sha256"] not in ("", digest):
        raise StoreDamaged(
            f"{file['path']} is not what its machine published: its SHA-256 is {digest}, not {file['sha256']}. Repeat the "
            "command; if it stays so, the store was changed or is damaged."
        )
