"""`spotsurfer local …`: boxes by hand. Found by the entry point group "spotsurfer.cli"."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from spotsurfer.cli.common import SESSION, examples
from spotsurfer.common.units import parse_seconds
from spotsurfer.config.paths import data_dir
from spotsurfer.model.errors import UsageError
from spotsurfer_providers.local import manual_control

_UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
app = typer.Typer(
    help="Boxes, the machines of the local provider: list, reclaim, cut off, clean up after a crash.",
    epilog=examples("spotsurfer local list", "spotsurfer local reclaim --notice 30s", "spotsurfer local clean"),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Folder = Annotated[
    Path | None, typer.Option("--data-dir", help="The controller's data folder; default: as configured.", show_default=False)
]
Box = Annotated[str, typer.Argument(metavar="BOX", help="As `spotsurfer local list` names it.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout, nothing else there.")]


@app.command(name="list", epilog=examples("spotsurfer local list", "spotsurfer local list --json"))
def list_boxes(folder: Folder = None, as_json: AsJson = False) -> None:
    """Show the boxes of this host, those that ended lately included."""
    rows = manual_control.list_boxes(_home(folder))
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    if not rows:
        print("No boxes.")
    for row in rows:
        print("  ".join(str(row.get(key) or "-") for key in ("id", "state", "market", "zone", "instance_type", "reason")))


@app.command(
    epilog=examples(
        "spotsurfer local reclaim box-4f0e9b112233 --notice 2m",
        "spotsurfer local reclaim box-4f0e9b112233 --notice 0",
        "spotsurfer local reclaim",
    )
)
def reclaim(
    box: Annotated[
        str, typer.Argument(metavar="[BOX]", help="As `spotsurfer local list` names it; default: the only one.")
    ] = "",
    notice: Annotated[str, typer.Option(help="How long before; 0 takes it without notice.")] = "2m",
    folder: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Take a box as the cloud would."""
    box = box or _only_box(_home(folder))
    try:
        seconds = parse_seconds(notice)
    except ValueError as e:
        raise UsageError(f"--notice {e}.") from None
    _done(manual_control.reclaim(_home(folder), box, seconds), f"{box} is taken in {seconds:g} s.", as_json)


@app.command(epilog=examples("spotsurfer local cut box-4f0e9b112233"))
def cut(box: Box, folder: Folder = None, as_json: AsJson = False) -> None:
    """Cut a box off the network; its metadata service stays."""
    _done(manual_control.set_link_up(_home(folder), box, False), f"{box} is cut off.", as_json)


@app.command(epilog=examples("spotsurfer local mend box-4f0e9b112233"))
def mend(box: Box, folder: Folder = None, as_json: AsJson = False) -> None:
    """Give a box its network back."""
    _done(manual_control.set_link_up(_home(folder), box, True), f"{box} is on the network.", as_json)


@app.command(epilog=examples("spotsurfer local rate box-4f0e9b112233 100mbit", "spotsurfer local rate box-4f0e9b112233 none"))
def rate(
    box: Box,
    limit: Annotated[str, typer.Argument(metavar="RATE", help="As 100mbit or 1gbit; none lifts the limit.")],
    folder: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Shape a box's link."""
    bits = None if limit == "none" else bits_per_second(limit)
    _done(manual_control.set_link_rate(_home(folder), box, bits), f"{box} has a link of {limit}.", as_json)


@app.command(epilog=examples("spotsurfer local rebalance box-4f0e9b112233"))
def rebalance(box: Box, folder: Folder = None, as_json: AsJson = False) -> None:
    """Give a box the advice to leave, as clouds give it before a notice."""
    _done(manual_control.rebalance(_home(folder), box), f"{box} is advised to leave.", as_json)


@app.command(epilog=examples("spotsurfer local clean", "spotsurfer local clean --all --data-dir /srv/old"))
def clean(
    everything: Annotated[bool, typer.Option("--all", help="End living boxes, too.")] = False,
    folder: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Remove what crashes and power cuts left: processes, mounts, loop devices, control groups."""
    removed = manual_control.clean(_home(folder), end_living=everything)
    if as_json:
        print(json.dumps(removed, indent=2))
        return
    for what in removed:
        print(f"removed {what}")
    if not removed:
        print("Nothing was left over.")


def bits_per_second(text: str) -> int:
    """A rate such as 100mbit or 1gbit. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)(?:bit)?", text.lower())
    if match is None:
        raise UsageError(f"{text!r} is no rate; write 100mbit or 1gbit")
    return int(float(match[1]) * _UNITS[match[2]])


def _home(folder: Path | None) -> Path:
    return folder.resolve() if folder is not None else data_dir(SESSION.config)


def _only_box(home: Path) -> str:
    """The box that runs, if there is but one. Raises UsageError."""
    running = [row["id"] for row in manual_control.list_boxes(home) if row["state"] == "running"]
    if len(running) != 1:
        raise UsageError(f"{len(running)} boxes run, so name one: {', '.join(running)}." if running else "No box runs.")
    return str(running[0])


def _done(answer: dict[str, Any], text: str, as_json: bool) -> None:
    print(json.dumps(answer, indent=2) if as_json else text)
