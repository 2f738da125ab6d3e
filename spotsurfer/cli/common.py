"""What all commands share: options, the session, the client."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotsurfer.cli.printing import answer_in_json
from spotsurfer.model.errors import DISK_FULL, UsageError
from spotsurfer.ports.clock import SystemClock

if TYPE_CHECKING:
    from spotsurfer.config.settings import Settings
    from spotsurfer.web.client import Client


@dataclass(slots=True)
class Session:
    """One call of the command line. `tail` holds the words after `--`."""

    debug: bool = False
    config: Path | None = None
    tail: list[str] = field(default_factory=list)

    def client(self) -> Client:
        """The controller; loads the HTTP client only if needed."""
        from spotsurfer.web.client import connect

        return connect(self.config)

    def settings(self, config: Path | None = None) -> Settings:
        """The settings of `config`, the command's own option, else of the one given before the command. Raises ConfigError."""
        from spotsurfer.config.settings import load_settings

        return load_settings(config or self.config)


CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}  # of every group
COMPLETION_SECONDS = 1.0  # a user waits at the prompt
SESSION = Session()  # a process is one call; main() fills it

AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout, nothing else there.", callback=answer_in_json)]


def known_jobs(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Jobs for the shell's completion, with their phases; none if no controller answers at once."""
    SESSION.config = context.find_root().params.get("config")
    client = SESSION.client()
    client.answer_seconds = COMPLETION_SECONDS
    jobs = client.get("/v1/brief")["jobs"]
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


def moment_of(since: str) -> datetime:
    """The value of an option --since in UTC. Without a zone it is local time. Raises UsageError."""
    from spotsurfer.common.units import parse_seconds

    try:
        if "-" in since:
            return datetime.fromisoformat(since.strip()).astimezone(UTC)
        return SystemClock().now() - timedelta(seconds=parse_seconds(since))
    except (ValueError, OverflowError, OSError):
        expected = 'expected so long ago, like "2h" or "7d", or a time like 2026-11-25 or "2026-11-25 14:30"'
        raise UsageError(f"--since is {since!r}, {expected}.") from None


def timeout_seconds(text: str) -> float:
    """The value of an option --timeout. Raises UsageError."""
    from spotsurfer.common.units import parse_seconds

    try:
        return parse_seconds(text)
    except ValueError as e:
        raise UsageError(f"--timeout {e}.") from None


def write(path: Path, content: str | bytes) -> None:
    """Write a whole file. Raises UsageError if it can't be written; `main` reports a full disk as everywhere."""
    try:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as e:
        if e.errno in DISK_FULL:
            raise
        raise UsageError(f"{path} can't be written: {e.strerror}. Name another file.") from e


def examples(*lines: str) -> str:
    """Help text below the options."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])
