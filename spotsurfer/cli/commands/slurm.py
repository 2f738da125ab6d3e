"""`slurm`: Slurm's commands on a path, for programs that submit to Slurm; a tether to jobs, for those that talk to them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spotsurfer.cli.common import CONTEXT, examples
from spotsurfer.cli.printing import put, put_json
from spotsurfer.model.errors import UsageError

Partitions = Annotated[
    list[str] | None,
    typer.Option(
        "--partition", help="NAME=MARKET: a partition, and which machines its jobs accept; repeatable, the first is usual."
    ),
]


def add(app: typer.Typer) -> None:
    """Register the commands of this file."""
    slurm = typer.Typer(
        no_args_is_help=True,
        help="Slurm's commands (sbatch, squeue …) for programs that submit to Slurm: put them into a folder.",
        epilog=examples("spotsurfer slurm install --to ~/slurm/bin"),
        context_settings=CONTEXT,
    )
    slurm.command(
        epilog=examples(
            "spotsurfer slurm install --to ~/slurm/bin && export PATH=~/slurm/bin:$PATH",
            "spotsurfer slurm install --to /opt/slurm/bin --partition long=spot-first --partition urgent=on-demand",
        )
    )(install)
    slurm.command(
        epilog=examples(
            "spotsurfer slurm tether --port 8786 --listen 0.0.0.0:7786 --address submit.example.org:7786 --to tether/join"
        )
    )(tether)
    slurm.callback()(lambda: None)
    app.add_typer(slurm, name="slurm")


def install(
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Folder for the programs; put it first on PATH.")],
    partitions: Partitions = None,
) -> None:
    """Write sbatch, squeue, sacct, scancel, scontrol, sinfo and srun into a folder."""
    from spotsurfer.slurm.install import install as write
    from spotsurfer.slurm.site import DEFAULT_PARTITIONS

    written = write(to.expanduser(), _read(partitions) if partitions else DEFAULT_PARTITIONS)
    put_json({"programs": [str(path) for path in written]})
    put(f"Written: {', '.join(path.name for path in written)}. Put {to} first on PATH.")


def tether(
    ports: Annotated[list[int], typer.Option("--port", help="A port of this host's 127.0.0.1 that jobs reach; repeatable.")],
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where jobs are met; or the path of a Unix socket.")],
    address: Annotated[str, typer.Option(metavar="HOST:PORT", help="How machines reach that.")],
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="Where to write the program that jobs' scripts call.")],
) -> None:
    """Hold connections between this host and jobs over their moves, until Ctrl-C or SIGTERM.

    A job's script calls `eval "$(python3 FILE)"`. From then on each --port is one of 127.0.0.1 in the job, and the job's own
    port $SPOTSURFER_TETHER_PORT is one of 127.0.0.1 here and in all other jobs of this tether.
    """
    from spotsurfer.tether.host_end import hold

    hold(ports, listen, address, to.expanduser(), lambda: put(f"Jobs call {to}."))


def _read(partitions: list[str]) -> dict[str, str]:
    from spotsurfer.model.job import MarketChoice

    found = dict[str, str]()
    for text in partitions:
        name, _, market = text.partition("=")
        if not name or market not in list(MarketChoice):
            raise UsageError(f"--partition is {text!r}, expected NAME=MARKET, with one of {', '.join(MarketChoice)}.")
        found[name] = market
    return found
