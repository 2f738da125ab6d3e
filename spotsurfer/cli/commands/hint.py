"""`hint`: how a job's own script reports. The agent lays a small script of this name into jobs; this command does the same."""

from __future__ import annotations

from typing import Annotated

import typer

from spotsurfer.cli.common import CONTEXT, examples
from spotsurfer.cli.printing import tell

NOBODY = "Nobody was told: this is no job of spotsurfer."


def add(app: typer.Typer) -> None:
    """Register the commands of this file."""
    stages = ("spotsurfer hint stage align", "spotsurfer hint stage 'variant calling' --memory 40G --cores 8")
    wish = "spotsurfer hint checkpoint"
    hint = typer.Typer(
        no_args_is_help=True,
        help="For a job's own script: tell its stage, or ask for a checkpoint.",
        epilog=examples(stages[0], wish),
        context_settings=CONTEXT,
    )
    hint.command(epilog=examples(*stages))(stage)
    hint.command(epilog=examples(wish))(checkpoint)
    app.add_typer(hint, name="hint")


def stage(
    name: Annotated[str, typer.Argument(help="What the job does now, in a few words.")],
    memory: Annotated[str, typer.Option(help="Memory that it will need for that, like 40G.")] = "",
    cores: Annotated[float, typer.Option(help="Processors that it will use.")] = 0.0,
) -> None:
    """Tell what the job does now, and what it needs: `show` shows it, its size policy is told, the job's history keeps it."""
    from spotsurfer_wire.helper import spotsurfer_job

    if not spotsurfer_job.stage(name, memory, cores):
        tell(NOBODY)


def checkpoint() -> None:
    """Ask for a checkpoint soon; returns at once."""
    from spotsurfer_wire.helper import spotsurfer_job

    if not spotsurfer_job.please_checkpoint():
        tell(NOBODY)
