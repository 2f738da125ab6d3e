"""`logs` (also live, over SSH) and `outputs`: the bytes of a job."""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple
from urllib.parse import quote

import typer

from spotsurfer.cli.commands import ssh
from spotsurfer.cli.common import SESSION, JobArgument, Since, examples, moment_of
from spotsurfer.cli.follow import has_ended
from spotsurfer.cli.printing import confirm, is_json, put, put_json, table, tell, when
from spotsurfer.common.input_errors import did_you_mean
from spotsurfer.common.units import counted, size
from spotsurfer.jobspec.validate import leaves_folder
from spotsurfer.model.errors import DISK_FULL, Conflict, MachineUnreachable, NotFound, SpotsurferError, StoreDamaged, UsageError
from spotsurfer.model.job import MAIN
from spotsurfer.web.client import Client, Json, job_path, patiently

if TYPE_CHECKING:
    import paramiko


class Piece(NamedTuple):
    """Output of one stream without interruption by the other; `seconds` since 1970, None = not known."""

    stream: str
    data: bytes
    seconds: float | None = None


# ---- `logs --live`: output as the job prints it, read on its machine over SSH; the store serves the beginning and the end.
# Offsets count from the job's beginning over all machines, so either source continues from the other. Output that was lost
# with a machine and printed again on the next one is not shown twice.

LIVE_LOOK_SECONDS = 2.0  # between checks whether the job has ended or moved
LogIn = Callable[[Json], "paramiko.SSHClient"]


def live_pieces(client: Client, job: str, streams: Sequence[str], log_in: LogIn) -> Iterator[Piece]:
    """Output of the job until it ends. Raises HostKeyMismatch, ConfigError, and the controller's errors."""
    at = dict.fromkeys(streams, 0)
    said = ""
    while True:
        seen = patiently(lambda: client.get(job_path(job)), tell)
        for name in at:
            while data := patiently(lambda n=name: client.data(job_path(job, "log", n), offset=at[n]), tell):  # type: ignore[misc]
                at[name] += len(data)
                yield Piece(name, data)
        if has_ended(seen):
            return
        try:
            machine = client.get(job_path(job, "machine"))
            connection = log_in(machine)
        except (Conflict, MachineUnreachable) as e:  # between two machines, or SSH does not work: the store goes on
            if str(e) != said:
                tell(f"Not live just now: {e}")
            said = str(e)
            time.sleep(LIVE_LOOK_SECONDS)
            continue
        said = ""
        for piece in _followed(client, job, at, (machine, connection)):
            at[piece.stream] += len(piece.data)
            yield piece


def _followed(client: Client, job: str, at: dict[str, int], there: tuple[Json, paramiko.SSHClient]) -> Iterator[Piece]:
    """Output from the machine, until the job moves or ends, or the connection breaks."""
    from spotsurfer.ssh import session

    machine, connection = there
    found: queue.Queue[Piece | None] = queue.Queue()

    def follow(name: str, start: int) -> None:
        try:
            session.follow(connection, machine["user"], name, start, lambda data: found.put(Piece(name, data)))
        except MachineUnreachable:
            pass  # the machine is gone; the store knows more
        finally:
            found.put(None)

    threads = [threading.Thread(target=follow, args=x, daemon=True) for x in at.items()]
    for thread in threads:
        thread.start()
    looked = time.monotonic()
    try:
        while True:
            with contextlib.suppress(queue.Empty):
                piece = found.get(timeout=LIVE_LOOK_SECONDS)
                if piece is None:
                    return
                yield piece
            if time.monotonic() - looked >= LIVE_LOOK_SECONDS:  # a connection may outlive the job
                looked = time.monotonic()
                if _left(client, job, machine["attempt"]):
                    return
    finally:
        connection.close()
        for thread in threads:
            thread.join(5.0)


def _left(client: Client, job: str, attempt: int) -> bool:
    try:
        return has_ended(client.get(job_path(job))) or client.get(job_path(job, "machine"))["attempt"] != attempt
    except Conflict:
        return True


# ---- Commands `logs` and `outputs`.

NAMES = {"out": "stdout", "err": "stderr"}
FOLLOW_SECONDS = 10.0
LOOK_SECONDS = 0.2
TELL_SECONDS, TELL_BYTES = 2.0, 64 << 20


def add(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command(
        epilog=examples(
            "spotsurfer logs assembly-3f9a1c",
            "spotsurfer logs -f --tail 20 assembly-3f9a1c",
            "spotsurfer logs --stderr --since 10m assembly-3f9a1c",
            "spotsurfer logs --attempt 2 assembly-3f9a1c",
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
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="Only the last lines.", show_default=False)] = None,
    since: Since = None,
    step: Annotated[str | None, typer.Option(help="Only what this step printed.", show_default=False)] = None,
    live: Annotated[bool, typer.Option("--live", help="Follow it on its machine, over SSH: nothing is waited for.")] = False,
) -> None:
    """Print the job's output in the order in which it was written, over all moves: stderr goes to stderr."""
    if step is not None and attempt is not None:
        raise UsageError("--step and --attempt can't be combined: a step's output goes over all its attempts.")
    if live and (step, attempt, tail, since) != (None, None, None, None):
        raise UsageError("--live shows what is printed now: it can't be combined with --step, --attempt, --tail or --since.")
    only = None if stdout == stderr else "out" if stdout else "err"
    part = Part(only, attempt, step, tail, max(0.0, moment_of(since).timestamp()) if since is not None else None)
    client, streams = SESSION.client(), [only] if only else list(NAMES)
    pieces = live_pieces(client, job, streams, ssh.log_in) if live else _pieces(client, job, part, follow)
    if is_json():
        _put_json(pieces, [NAMES[s] for s in streams], one_by_one=follow or live)
        return
    for piece in pieces:
        # One stream alone goes to stdout, so that `logs --stderr JOB | less` works.
        target = sys.stdout if piece.stream == "out" or only else sys.stderr
        target.buffer.write(piece.data)
        target.flush()


def _put_json(pieces: Iterator[Piece], names: list[str], *, one_by_one: bool) -> None:
    """Print each piece as one line when it comes, or all at once: each stream, and the pieces in their order."""
    decoders = {
        name: codecs.getincrementaldecoder("utf-8")("replace") for name in NAMES.values()
    }  # a piece may end within a letter
    found: list[Json] = []

    def tell_one(name: str, data: bytes, seconds: float | None, final: bool = False) -> None:
        told = {"stream": name, "time": _utc(seconds), "text": decoders[name].decode(data, final)}
        if one_by_one and told["text"]:
            put_json(told, compact=True)
        elif told["text"]:
            found.append(told)

    for piece in pieces:
        tell_one(NAMES[piece.stream], piece.data, piece.seconds)
    for name in names:
        tell_one(name, b"", None, final=True)
    if not one_by_one:
        put_json({**{n: "".join(x["text"] for x in found if x["stream"] == n) for n in names}, "pieces": found})


def _utc(seconds: float | None) -> str | None:
    """None also for impossible times: an agent's record may be damaged."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat() if seconds is not None else None
    except (ValueError, OverflowError, OSError):
        return None


class Part(NamedTuple):
    """A part of the output: of one stream, of an attempt, of a step, the last lines, since a time."""

    only: str | None
    attempt: int | None
    step: str | None
    tail: int | None
    since: float | None


def _pieces(client: Client, job: str, part: Part, follow: bool) -> Iterator[Piece]:
    place: dict[str, int] = {}
    where: Json = {"tail": part.tail, "since": part.since}
    first, unordered = True, set[str]()
    while True:
        begin, end = _bounds(patiently(lambda: client.get(job_path(job)), tell), part.step) if part.step else ({}, {})
        place = place or begin
        until = {f"{name}_end": end.get(name, 0) for name in NAMES} if end else {}
        follows = follow and not end
        asked = {"only": part.only, "attempt": part.attempt, "wait": FOLLOW_SECONDS if follows else 0}
        query = {**place, **until, **where, **asked}
        parts, told = patiently(lambda q=query: client.framed(job_path(job, "log"), **q), tell)  # type: ignore[misc]
        before, unordered = len(unordered), unordered | {head["stream"] for head, _ in parts if not head["recorded"]}
        if before < len(unordered) == len(NAMES):
            tell("An older agent did not record in which order some of this was printed: stdout comes first, then stderr.")
        if first and not part.step and told["earlier"]:
            attempts = ", ".join(f"--attempt {n}" for n in told["earlier"])
            tell(f"Earlier runs of {job} have output of their own: {attempts}.")
        first = False
        for head, data in parts:
            yield Piece(head["stream"], data, head["seconds"])
        place, where = told["next"], {}
        if not parts and (told["ended"] or not follows):
            return


def _bounds(seen: Json, step: str) -> tuple[dict[str, int], dict[str, int]]:
    """Begin and end of a step's output, by stream; no end while it runs. Raises NotFound, Conflict."""
    run = next((s for s in seen["steps"] if s["name"] == step), None)
    if run is not None:
        return run["log"], run["log_end"] if run["exit_code"] is not None else {}
    names = [s["name"] for s in seen["spec"]["steps"]] or [MAIN]
    if step in names:
        raise Conflict(f"Step {step} of {seen['id']} has not begun yet.")
    raise NotFound(f"{seen['id']} has no step {step!r}. {did_you_mean(step, names)}")


def outputs(
    job: JobArgument,
    to: Annotated[Path | None, typer.Option("--to", metavar="DIR", help="Download into this folder.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
    partial: Annotated[bool, typer.Option("--partial", help="What a running job has written so far.")] = False,
) -> None:
    """List the results of a job that has ended, or download them; each file is checked against its digest."""
    client = SESSION.client()
    place = job_path(job, "outputs") if not partial else _partial(client, job)
    told = client.get(place)
    found = told["outputs"]
    if to is not None:
        for file in found:
            if why := leaves_folder(file["path"]):
                raise SpotsurferError(f"The controller offers {file['path']!r}, which {why}: it is not written.")
        there = {} if force else _there(found, to)
        wanted = [file for file in found if file["path"] not in there]
        if (total := sum(f["size"] for f in wanted)) > TELL_BYTES:
            tell(f"Downloading {counted(len(wanted), 'file')}, {size(total)} …")
        for file in found:
            file["to"] = str(there.get(file["path"]) or _download(client, place, file, to))
    if put_json(told if partial else found):
        return
    if partial:
        put(f"As they were at {when(told['at'])} in the step {told['step']}; the job runs on.")
    if to is not None:
        confirm(f"In {to}: {counted(len(found), 'file')}, {size(sum(f['size'] for f in found))}{_checked(found)}.")
    elif not found:
        put(_why_none(client.get(job_path(job)), partial))
    else:
        table(["size", "path"], [[size(f["size"]), f["path"]] for f in found])


def _why_none(job: Json, partial: bool) -> str:
    """The reason why a job has no results."""
    patterns = job["spec"]["outputs"]
    if not patterns:
        why = "it names no outputs: name them in the job file (`outputs`) or with --out"
    elif job["state"] == "cancelled":
        why = "it was cancelled before they were published"
    elif job["state"] == "failed":
        why = f"it failed: {job['reason']}"
    else:
        why = f"its outputs, {', '.join(patterns)}, {'match nothing so far' if partial else 'matched nothing'}"
    return f"The job has no results: {why}."


def _checked(found: list[Json]) -> str:
    old = sum(1 for f in found if not f["sha256"])
    if old:
        return f"; {old} of them have no digest to be checked against: they were published by an older agent"
    return ", each as its machine published it (SHA-256)" if found else ""


def _partial(client: Client, job: str) -> str:
    """Ask a running job for its outputs so far, and wait for them; returns their address."""
    number = client.post(job_path(job, "partials"))["number"]
    place, began, told = job_path(job, "partials", str(number)), time.monotonic(), False
    while not patiently(lambda: client.get(place), tell)["done"]:
        if not told and time.monotonic() - began > TELL_SECONDS:
            tell("Waiting until its machine has uploaded what there is …")
            told = True
        time.sleep(LOOK_SECONDS)
    return place


def _there(found: list[Json], to: Path) -> dict[str, Path]:
    """Files that an earlier call left whole in the folder. Raises UsageError for other files of these names."""
    there = {}
    for file in found:
        target = to / file["path"]
        if not os.path.lexists(target):
            continue
        if not _is(file, target):
            why = "is another file" if file["sha256"] else "nothing tells whether it is whole (an older agent gave no digest)"
            raise UsageError(f"{target} is there already and {why}: name another folder, or overwrite with --force.")
        there[str(file["path"])] = target
    if there:
        tell(f"Already in {to}: {len(there)} of {counted(len(found), 'file')}.")
    return there


def _is(file: Json, target: Path) -> bool:
    """Whether the local file equals the published one. Without a digest nobody can tell."""
    try:
        if not target.is_file() or target.stat().st_size != file["size"] or not file["sha256"]:
            return False
        with target.open("rb") as opened:
            return bool(hashlib.file_digest(opened, "sha256").hexdigest() == file["sha256"])
    except OSError:
        return False


def _download(client: Client, place: str, file: Json, to: Path) -> Path:
    """Download one file under its name: complete and as published, or not at all. Raises SpotsurferError, StoreDamaged."""
    name = str(file["path"])
    target = to / name
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    count, digest = 0, hashlib.sha256()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as opened:
            for piece in client.download(f"{place}/{quote(name, safe='/')}"):
                count += opened.write(piece)
                digest.update(piece)
        if count != file["size"]:
            raise SpotsurferError(f"{name} came with {count} bytes instead of {file['size']}: repeat the command.")
        if file["sha256"] not in ("", digest.hexdigest()):
            raise StoreDamaged(
                f"{name} is not what its machine published: its SHA-256 is {digest.hexdigest()}, not {file['sha256']}. Repeat "
                "the command; if it stays so, the store was changed or is damaged."
            )
        part.replace(target)
    except OSError as e:
        if e.errno in DISK_FULL:
            raise
        raise UsageError(f"{target} can't be written ({e.strerror}): name another folder after --to.") from e
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
    return target
