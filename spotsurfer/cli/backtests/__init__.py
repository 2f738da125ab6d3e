"""`spotsurfer backtest …`: what would a policy have cost? One file a sub-command; each registers itself."""

from __future__ import annotations

import typer

from spotsurfer.cli.backtests import deadline, interval, placement, size
from spotsurfer.cli.common import CONTEXT


def add(app: typer.Typer) -> None:
    """Register the group and its sub-commands."""
    group = typer.Typer(
        name="backtest",
        help="Try policies on recorded or made-up markets: what would they have cost?",
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings=CONTEXT,
    )
    group.callback()(lambda: None)  # so that a group of one command stays a group
    for add_command in (deadline.add, placement.add, interval.add, size.add):
        add_command(group)
    app.add_typer(group)
