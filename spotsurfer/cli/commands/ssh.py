"""`ssh`: a shell or a command on the machine of a job. The controller reports its address and its host key."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotsurfer.cli.common import SESSION, JobArgument, examples
from spotsurfer.cli.printing import put_json
from spotsurfer.web.client import Json, job_path

if TYPE_CHECKING:
    import paramiko

KeyFile = Annotated[
    Path | None, typer.Option("--key", help="Private key (default: [ssh] key_file, else your SSH agent's).", show_default=False)
]


def add(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command(
        epilog=examples("spotsurfer ssh assembly", "spotsurfer ssh assembly -- uptime", "spotsurfer ssh --json assembly")
    )(ssh)


def ssh(job: JobArgument, key: KeyFile = None) -> None:
    """Log in to the machine that a job is on, or run what stands behind -- there. The exit code is the command's."""
    found = SESSION.client().get(job_path(job, "machine"))
    if put_json(found):
        return
    from spotsurfer.ssh import session

    client = log_in(found, key)
    try:
        if SESSION.tail and not sys.stdin.isatty():
            out, err = (_writer(s.fileno()) for s in (sys.stdout, sys.stderr))
            code = session.run(client, shlex.join(SESSION.tail), out, err, sys.stdin.fileno())
        else:
            code = session.shell(client, SESSION.tail, sys.stdin, lambda data: os.write(sys.stdout.fileno(), data))
    finally:
        client.close()
    raise typer.Exit(code)


def log_in(found: Json, key: Path | None = None) -> paramiko.SSHClient:
    """A connection to it. Raises MachineUnreachable, HostKeyMismatch, ConfigError."""
    from spotsurfer.ports.service import Machine
    from spotsurfer.ssh.connection import connect

    names = ("attempt", "instance", "address", "port", "user", "host_key")
    return connect(Machine(**{name: found[name] for name in names}), key or _key_file())


def _key_file() -> Path | None:
    """The key file that this host's configuration names, if any."""
    from spotsurfer.config.settings import load_settings
    from spotsurfer.model.errors import ConfigError

    try:
        return load_settings(SESSION.config).ssh.key_file
    except ConfigError:
        if SESSION.config is not None:
            raise
        return None  # a laptop's configuration may be for another host


def _writer(fd: int) -> Callable[[bytes], None]:
    def write(data: bytes) -> None:
        while data:
            data = data[os.write(fd, data) :]

    return write
