"""`backup`, `restore` and `adopt`: what an operator does on the controller's host against the loss of its data folder."""

from __future__ import annotations

import dataclasses
import getpass
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotsurfer.cli import follow
from spotsurfer.cli.common import SESSION, AsJson, Config, examples
from spotsurfer.cli.screen import put, put_json, table, when
from spotsurfer.common.units import counted
from spotsurfer.model.errors import InputMissing, UsageError
from spotsurfer.model.job import Job, JobState, Wish

if TYPE_CHECKING:
    from spotsurfer.config.settings import Settings

VARIABLE = "SPOTSURFER_BACKUP_PASSPHRASE"
SHORTEST = 8  # characters of a passphrase for a new backup
HERE = "file://"

PassphraseFile = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        metavar="FILE",
        help=f"The passphrase is its first line; else ${VARIABLE}, else it is asked for.",
        show_default=False,
    ),
]


def add(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command(
        epilog=examples(
            "spotsurfer backup --to /mnt/backup/spotsurfer.backup",
            "spotsurfer backup --to /mnt/backup/$(date +%F).backup --passphrase-file /root/passphrase",
        )
    )(backup)
    app.command(
        epilog=examples(
            "spotsurfer restore /mnt/backup/spotsurfer.backup",
            "spotsurfer restore /mnt/backup/2026-11-25.backup --passphrase-file /root/passphrase",
        )
    )(restore)
    app.command(epilog=examples("spotsurfer adopt", "spotsurfer adopt --cpu 4 --mem 16G"))(adopt)


def backup(
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="File to write, mode 0600.", show_default=False)],
    passphrase_file: PassphraseFile = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Save the controller's database, key and token in one encrypted file; the controller may be running.

    Whoever loses the passphrase can't open the file. The store is no part of it.
    """
    from spotsurfer.ports.clock import SystemClock
    from spotsurfer.recovery.backup import back_up

    settings = _settings(config)
    secret = _passphrase(passphrase_file, new=True)
    progress = _Progress("backup")
    try:
        about = back_up(settings, to, secret, SystemClock().now(), progress.bytes, force)
    finally:
        progress.end()
    size = to.stat().st_size
    if as_json:
        put_json({"file": str(to), "bytes": size, **dataclasses.asdict(about)})
        return
    from spotsurfer.common.units import size as text_of

    names = ", ".join(m.name for m in about.members)
    put(f"{to} ({text_of(size)}) holds {names} of the controller family {about.family}, with {counted(about.jobs, 'job')}.")
    if about.store_url.startswith(HERE):
        put(f"The store {about.store_url} is on this host and no part of it: copy it as well, after each backup.")


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `spotsurfer backup` wrote.", show_default=False)],
    passphrase_file: PassphraseFile = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Put a backup where this configuration has the controller's data folder: whole, or not at all.

    Nothing is written over: a data folder in which a controller runs, or with a database that has jobs, is refused.
    """
    from spotsurfer.recovery.backup import refusals_told
    from spotsurfer.recovery.restore import restore as put_in_place

    settings = _settings(config)
    with refusals_told():
        if not file.is_file():
            raise InputMissing(f"{file} is not there: name a file that `spotsurfer backup` wrote.")
    secret = _passphrase(passphrase_file, new=False)
    progress = _Progress("restore")
    try:
        done = put_in_place(settings, file, secret, progress.bytes)
    finally:
        progress.end()
    about, folder = done.about, settings.controller.data_dir
    if as_json:
        put_json({"data_dir": str(folder), "kept_token": done.kept_token, **dataclasses.asdict(about)})
        return
    jobs = counted(about.jobs, "job")
    put(f"{folder} is that of the controller family {about.family} as it was at {when(about.made_at)}, with {jobs}.")
    if done.kept_token:
        put(f"{settings.token_path} was there already and stays.")
    if about.store_url != settings.store_url:
        put(f"Its store was {about.store_url}, and this configuration's is {settings.store_url}: it must be the same one.")
    put("Next: stop the old controller for good, wherever it ran, and start this one: `spotsurfer serve`.")
    put("It reads from the store who owns each job. Jobs that were submitted after the backup: `spotsurfer adopt` before that.")


def adopt(
    cpu: Annotated[int, typer.Option("--cpu", min=1, help="Processors that each job asks for from now on.")] = 1,
    mem: Annotated[str, typer.Option("--mem", help="Memory that each job asks for at least, from now on.")] = "1G",
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Take up the jobs of a store of which the controller's database is lost, or older than they are.

    Needs its store.key. Jobs with a machine go on; the others are held until `spotsurfer resume`, for what they may cost is not
    known any more, nor their priorities, retries, deadlines, tags and hooks. Jobs that the database has stay as they are.
    """
    from spotsurfer.common.units import parse_bytes
    from spotsurfer.ports.clock import SystemClock
    from spotsurfer.recovery.adopt import Least
    from spotsurfer.recovery.adopt import adopt as take_over

    settings = _settings(config)
    try:
        least = Least(cpu, parse_bytes(mem))
    except ValueError as e:
        raise UsageError(f"--mem {e}.") from None
    progress = _Progress("adopt")
    try:
        done = take_over(settings, least, SystemClock().now(), progress.count)
    finally:
        progress.end()
    jobs = [{"job": j.id, "state": _state(j), "reason": j.reason} for j in done.jobs]
    if as_json:
        put_json({"family": done.family, "jobs": jobs, "unread": done.unread})
        return
    if jobs:
        table(["job", "state", "why"], [[j["job"], j["state"], j["reason"]] for j in jobs])
    for job, why in done.unread.items():
        put(f"{job} can't be read and is left alone: {why}")
    more = f"{counted(len(jobs), 'job')} more"
    put(f"{settings.controller.data_dir} is that of the controller family {done.family}, with {more}.")
    put("Next: `spotsurfer serve`.")


def _state(job: Job) -> str:
    """The state of a job as words for people."""
    if job.state is JobState.QUEUED:
        return {Wish.HOLD: "held", Wish.CANCEL: "is being cancelled", Wish.RUN: "has a machine"}[job.wish]
    return str(job.state)


def _settings(config: Path | None) -> Settings:
    from spotsurfer.config.settings import load_settings

    return load_settings(config or SESSION.config)


def _passphrase(file: Path | None, new: bool) -> str:
    """The passphrase from the file, the environment or the terminal. Raises UsageError."""
    if file is not None:
        secret = _first_line(file)
    elif VARIABLE in os.environ:
        secret = os.environ[VARIABLE]
    elif sys.stdin.isatty():
        secret = getpass.getpass("Passphrase of the backup: ")
        if new and getpass.getpass("The same once more: ") != secret:
            raise UsageError("The two passphrases differ: call the command again.")
    else:
        raise UsageError(f"There is no passphrase: write it to a file and name that with --passphrase-file, or set {VARIABLE}.")
    if new and len(secret) < SHORTEST:
        raise UsageError(f"The passphrase has fewer than {SHORTEST} characters: choose a longer one.")
    return secret


def _first_line(file: Path) -> str:
    try:
        if file.is_file() and file.stat().st_mode & 0o077:
            raise UsageError(f"{file} can be read by others: chmod 600 {file}.")
        with file.open() as opened:
            return opened.readline().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"The passphrase can't be read from {file}: {getattr(e, 'strerror', e)}.") from e


class _Progress:
    """A line on standard error from the third second on, once a second."""

    def __init__(self, what: str) -> None:
        self._what, self._said, self._shown = what, time.monotonic() + follow.QUIET_SECONDS - follow.STEP_SECONDS, False

    def bytes(self, stage: str, at: int, of: int) -> None:
        """Progress in bytes; 0 if the total is not known."""
        from spotsurfer.common.units import size

        self.count(stage, size(at), size(of) if of else "")

    def count(self, stage: str, at: object, of: object) -> None:
        """Progress in things without a unit."""
        if time.monotonic() - self._said >= follow.STEP_SECONDS:
            self._said = time.monotonic()
            self._shown = follow.show({"what": self._what, "stage": stage, "at": at, "of": of}) or self._shown

    def end(self) -> None:
        """Let the next output begin on a new line."""
        if self._shown:
            print(file=sys.stderr, flush=True)
