"""Bytes of a job: `logs` and `outputs`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from spotsurfer.cli.common import SESSION, AsJson, JobArgument, examples
from spotsurfer.cli.screen import put, put_json, table, tell
from spotsurfer.jobcheck import leaves_folder
from spotsurfer.model.errors import SpotsurferError, UsageError
from spotsurfer.units import size

if TYPE_CHECKING:
    from spotsurfer.cli.client import Client

FOLLOW_SECONDS = 10.0


def add(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command(epilog=examples("spotsurfer logs assembly-3f9a1c", "spotsurfer logs -f --stderr assembly-3f9a1c"))(logs)
    app.command(epilog=examples("spotsurfer outputs assembly-3f9a1c", "spotsurfer outputs assembly-3f9a1c --to results"))(
        outputs
    )


def logs(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job ends.")] = False,
    stdout: Annotated[bool, typer.Option("--stdout", help="Only the job's standard output.")] = False,
    stderr: Annotated[bool, typer.Option("--stderr", help="Only the job's standard error.")] = False,
    attempt: Annotated[int | None, typer.Option(min=1, help="As it was under this attempt.", show_default=False)] = None,
    as_json: AsJson = False,
) -> None:
    """Print the job's output, in one piece across all moves: its stdout on stdout, its stderr on stderr."""
    chosen = [name for name, wanted in (("out", stdout), ("err", stderr)) if wanted] or ["out", "err"]
    pieces = _pieces(SESSION.client(), job, chosen, attempt, follow)
    if as_json and not follow:
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


def _pieces(client: Client, job: str, streams: list[str], attempt: int | None, follow: bool) -> Iterator[tuple[str, bytes]]:
    from spotsurfer.cli.client import job_path, patiently
    from spotsurfer.cli.follow import has_ended

    at = dict.fromkeys(streams, 0)
    while True:
        # Asked before the log is read: what an ended job wrote is all there when the log is read after it.
        ended = not follow or has_ended(patiently(lambda: client.get(job_path(job)), tell))
        grew = False
        for name in streams:
            # The last stream waits for news, if the others had none.
            wait = FOLLOW_SECONDS / len(streams) if not ended and not grew and name == streams[-1] else 0.0
            while piece := _read(client, job, name, Ask(at[name], attempt, wait)):
                at[name] += len(piece)
                grew, wait = True, 0.0
                yield name, piece
        if ended:
            return


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
    as_json: AsJson = False,
) -> None:
    """List the results of a job that has ended, or download them."""
    from spotsurfer.cli.client import job_path

    client = SESSION.client()
    found = client.get(job_path(job, "outputs"))["outputs"]
    if to is not None:
        for file in found:
            file["to"] = str(_download(client, job, file, to, force))
    if as_json:
        put_json(found)
    elif to is not None:
        put(f"{len(found)} files, {size(sum(f['size'] for f in found))}, are in {to}.")
    elif not found:
        put("The job has no outputs: its `outputs` patterns matched nothing.")
    else:
        table(["size", "path"], [[size(f["size"]), f["path"]] for f in found])


def _download(client: Client, job: str, file: dict[str, Any], to: Path, force: bool) -> Path:
    """One file, complete under its name or not at all."""
    from spotsurfer.cli.client import job_path

    if why := leaves_folder(file["path"]):
        raise SpotsurferError(f"The controller offers {file['path']!r}, which {why}: it is not written.")
    target = to / str(file["path"])
    if target.exists() and not force:
        raise UsageError(f"{target} is there already: name another folder, or overwrite with --force.")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        count = 0
        with part.open("wb") as opened:
            for piece in client.download(job_path(job, "outputs", file["path"])):
                count += opened.write(piece)
        if count != file["size"]:
            raise SpotsurferError(f"{file['path']} came with {count} bytes instead of {file['size']}: repeat the command.")
        part.replace(target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
    return target
