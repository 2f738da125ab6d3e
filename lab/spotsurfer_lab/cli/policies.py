"""`policies`: lists policies with their parameters; `policies train` makes a bank of market models for `surf`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from spotsurfer.cli.common import CONTEXT, AsJson, examples, write
from spotsurfer.cli.printing import put, put_json, table, tell
from spotsurfer.common.plugins import KINDS, TRAINING, plugin, plugins
from spotsurfer.common.units import counted
from spotsurfer.model.errors import UsageError
from spotsurfer_lab.cli.common import Availability, OwnHistory, TickSeconds, own_records, progress

LEARNER = "surf"

TRAIN = (
    "spotsurfer policies train --availability A.csv.gz --tick-seconds 600 --out bank.json",
    "spotsurfer policies train --own-history 100 --out bank.json",
)


def add(app: typer.Typer) -> None:
    """Register the group."""
    group = typer.Typer(
        name="policies",
        help="List policies with their parameters, or train one on records of spot markets.",
        invoke_without_command=True,
        rich_markup_mode=None,
        epilog=examples("spotsurfer policies", "spotsurfer policies --json", *TRAIN),
        context_settings=CONTEXT,
    )
    group.callback()(policies)
    group.command(name="train", epilog=examples(*TRAIN))(train)
    app.add_typer(group)


def policies(context: typer.Context, as_json: AsJson = False) -> None:  # noqa: ARG001 - its callback has seen it
    """List all that are installed, and what they can be set to."""
    if context.invoked_subcommand is not None:
        return
    found = [_about(kind, group, name) for kind, group in KINDS.items() for name in sorted(plugins(group))]
    put_json({"policies": found})
    rows = [[f["kind"], f["name"], _settings(f["parameters"]), f["about"] or f["trouble"]] for f in found]
    table(["kind", "policy", "parameters", "what it does"], rows)


def _about(kind: str, group: str, name: str) -> dict[str, Any]:
    """Facts about one policy; a policy that can't be loaded is listed with its error."""
    from spotsurfer.ports.policies import parameters_of

    try:
        make = plugin(group, name)
    except Exception as e:  # another package's fault must not break the list
        return {"kind": kind, "name": name, "parameters": [], "about": "", "trouble": f"{type(e).__name__}: {e}"}
    given = [{"name": p.name, "default": p.default, "text": p.text} for p in parameters_of(make)]
    about = str(getattr(make, "about", "") or make.__doc__ or "").strip().partition("\n")[0]
    return {"kind": kind, "name": name, "parameters": given, "about": about, "trouble": ""}


def _settings(given: list[dict[str, Any]]) -> str:
    return "; ".join(f"{p['name']} ({p['default']!r}): {p['text']}" for p in given) or "-"


def train(
    out: Annotated[Path, typer.Option(help="The bank that is written, JSON.")],
    availability: Availability = None,
    own_history: OwnHistory = None,
    tick_seconds: TickSeconds = 600.0,
    states: Annotated[int, typer.Option(min=1, max=8, help="Hidden states of each market.")] = 4,
    seed: Annotated[int, typer.Option(help="Of the random beginnings.")] = 0,
) -> None:
    """Make a bank of market models; `[policy.surf] bank = "FILE"` puts it to use."""
    import numpy as np

    from spotsurfer_lab.markets import read_trace, records_of

    if availability is not None and own_history is None:
        records = records_of(read_trace(availability))
    elif own_history is not None and availability is None:
        records = own_records(own_history, tick_seconds)
    else:
        raise UsageError("Give either --availability FILE or --own-history DAYS.")
    learner = plugin(TRAINING, LEARNER)
    with progress("training") as step:
        try:
            text, names = learner(records, tick_seconds, states, np.random.default_rng(seed), step)
        except ValueError as e:
            raise UsageError(f"Nothing could be learned: {e}.") from e
    write(out, text)
    if not put_json({"bank": str(out), "markets": names}):
        put(f"{out}: {counted(len(names), 'market')}.")
        tell('Put it to use by `[policy.surf] bank = "…"` in the configuration.')
