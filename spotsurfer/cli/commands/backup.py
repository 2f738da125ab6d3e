"""`backup`, `restore` and `adopt`: what an operator does on the controller's host against the loss of its data folder."""

from __future__ import annotations

import dataclasses
import getpass
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from spotsurfer.cli import follow
from spotsurfer.cli.common import SESSION, Config, examples
from spotsurfer.cli.printing import put, put_json, table, when
from spotsurfer.common.units import counted, parse_bytes, size
from spotsurfer.model.errors import InputMissing, UsageError
from spotsurfer.model.job import JobState, Wish
from spotsurfer.ports.clock import SystemClock

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
) -> None:
    """Save the controller's database, key and token in one encrypted file; the controller may be running.

    Whoever loses the passphrase can't open the file. The store is no part of it.
    """
    from spotsurfer.recovery.backup import back_up

    settings = SESSION.settings(config)
    secret = _passphrase(passphrase_file, new=True)
    with follow.Meter("backup") as meter:
        about = back_up(settings, to, secret, SystemClock().now(), meter.bytes, force)
    written = to.stat().st_size
    put_json({"file": str(to), "bytes": written, **dataclasses.asdict(about)})
    names = ", ".join(m.name for m in about.members)
    put(f"{to} ({size(written)}) holds {names} of the controller family {about.family}, with {counted(about.jobs, 'job')}.")
    if about.store_url.startswith(HERE):
        put(f"The store {about.store_url} is on this host and no part of it: copy it as well, after each backup.")


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `spotsurfer backup` wrote.", show_default=False)],
    passphrase_file: PassphraseFile = None,
    config: Config = None,
) -> None:
    """Put a backup where this configuration has the controller's data folder: whole, or not at all.

    Nothing is written over: a data folder in which a controller runs, or with a database that has jobs, is refused.
    """
    from spotsurfer.recovery.backup import refusals_told
    from spotsurfer.recovery.restore import restore as put_in_place

    settings = SESSION.settings(config)
    with refusals_told():
        if not file.is_file():
            raise InputMissing(f"{file} is not there: name a file that `spotsurfer backup` wrote.")
    secret = _passphrase(passphrase_file, new=False)
    with follow.Meter("restore") as meter:
        done = put_in_place(settings, file, secret, meter.bytes)
    about, folder = done.about, settings.controller.data_dir
    put_json({"data_dir": str(folder), "kept_token": done.kept_token, **dataclasses.asdict(about)})
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
) -> None:
    """Take up the jobs of a store of which the controller's database is lost, or older than they are.

    Needs its store.key. Jobs with a machine go on; the others are held until `spotsurfer resume`, for what they may cost is not
    known any more, nor their priorities, retries, deadlines, tags and hooks. Jobs that the database has stay as they are.
    """
    from spotsurfer.recovery.adopt import Least
    from spotsurfer.recovery.adopt import adopt as take_over

    settings = SESSION.settings(config)
    try:
        least = Least(cpu, parse_bytes(mem))
    except ValueError as e:
        raise UsageError(f"--mem {e}.") from None
    with follow.Meter("adopt") as meter:
        done = take_over(settings, least, SystemClock().now(), meter.count)
    queued = {Wish.HOLD: "held", Wish.CANCEL: "is being cancelled", Wish.RUN: "has a machine"}
    states = [queued[j.wish] if j.state is JobState.QUEUED else str(j.state) for j in done.jobs]
    jobs = [{"job": j.id, "state": state, "reason": j.reason} for j, state in zip(done.jobs, states, strict=True)]
    put_json({"family": done.family, "jobs": jobs, "unread": done.unread})
    if jobs:
        table(["job", "state", "why"], [[j["job"], j["state"], j["reason"]] for j in jobs])
    for job, why in done.unread.items():
        put(f"{job} can't be read and is left alone: {why}")
    more = f"{counted(len(jobs), 'job')} more"
    put(f"{settings.controller.data_dir} is that of the controller family {done.family}, with {more}.")
    put("Next: `spotsurfer serve`.")


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
