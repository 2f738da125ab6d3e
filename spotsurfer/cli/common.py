"""What all commands share: options, the session, the client, points of time for --since."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotsurfer.model.errors import DISK_FULL, UsageError

if TYPE_CHECKING:
    from spotsurfer.web.client import Client


# What all commands share: options, the session, the client.


@dataclass(slots=True)
class Session:
    """One call of the command line. `tail` is what stood after `--`."""

    debug: bool = False
    config: Path | None = None
    tail: list[str] = field(default_factory=list)

    def client(self) -> Client:
        """The controller; what speaks HTTP is loaded only where it is needed."""
        from spotsurfer.web.client import connect

        return connect(self.config)


CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}  # of every group
COMPLETION_SECONDS = 1.0  # somebody waits at the prompt
SESSION = Session()  # a process is one call; main() fills it

AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout, nothing else there.")]


def known_jobs(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Jobs for the shell's completion, with what they are doing; none where no controller answers at once."""
    SESSION.config = context.find_root().params.get("config")
    client = SESSION.client()
    client.answer_seconds = COMPLETION_SECONDS
    jobs = client.get("/v1/jobs")["jobs"]
    return [(job["id"], job["phase"]) for job in jobs if job["id"].startswith(incomplete)]


JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="A job's id or name; of several of a name the newest that is active, else the newest.",
        show_default=False,
        autocompletion=known_jobs,
    ),
]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until it is done.")]
Since = Annotated[
    str | None,
    typer.Option("--since", help="From then on: so long ago, like 2h or 7d, or a date.", show_default=False),
]
Config = Annotated[Path | None, typer.Option("--config", help="Configuration file.", show_default=False)]


def timeout_seconds(text: str) -> float:
    """The value of an option --timeout. Raises UsageError."""
    from spotsurfer.common.units import parse_seconds

    try:
        return parse_seconds(text)
    except ValueError as e:
        raise UsageError(f"--timeout {e}.") from None


def write(path: Path, content: str | bytes) -> None:
    """A whole file. Raises UsageError where it can't be written; a full disk is told of as everywhere (`main`)."""
    try:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as e:
        if e.errno in DISK_FULL:
            raise
        raise UsageError(f"{path} can't be written: {e.strerror}. Name another file.") from e


def examples(*lines: str) -> str:
    """Help text below the options."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


# Points of time as people give them to --since: so long ago, or a date.
