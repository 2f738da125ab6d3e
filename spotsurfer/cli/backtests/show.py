"""How every back-test answers: a progress bar while it works, then a table, JSON, or a page with plots."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spotsurfer.cli.common import write
from spotsurfer.cli.screen import console, put, put_json, table, tell
from spotsurfer.model.errors import UsageError

if TYPE_CHECKING:
    from spotsurfer.sim.match import Match, Step
    from spotsurfer.sim.outcome import Comparison
    from spotsurfer.sim.plots import Plot

Html = Annotated[Path | None, typer.Option("--html", help="Write a page with plots here.", show_default=False)]

Settings = Annotated[list[str] | None, typer.Option("--set", help="POLICY.KEY=value; repeatable.", show_default=False)]


def settings_of(words: list[str] | None) -> dict[str, dict[str, object]]:
    """By policy; values as in TOML, anything else is a text. Raises UsageError."""
    found: dict[str, dict[str, object]] = {}
    for word in words or []:
        name, equals, text = word.partition("=")
        policy, dot, key = name.partition(".")
        if not equals or not dot or not policy or not key:
            raise UsageError(f"--set {word!r} is not like POLICY.KEY=value, e.g. surf.strange=0.1.")
        try:
            value: object = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        found.setdefault(policy, {})[key] = value
    return found


@contextmanager
def progress(title: str) -> Iterator[Step]:
    """A bar on stderr, only where somebody looks."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    screen = console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def show(match: Match, as_json: bool, html: Path | None = None, about: Mapping[str, object] | None = None) -> None:
    """Print the figures of each policy; write the page, too, where one is asked for.

    `about`: what else is told of the market. Raises UsageError."""
    from spotsurfer.sim.outcome import figures

    comparison = replace(match.comparison, settings={**match.comparison.settings, **(about or {})})
    found = figures(comparison)
    if html is not None:
        _page(html, comparison, found, match.plots)
    if as_json:
        put_json({"title": comparison.title, "settings": dict(comparison.settings), "policies": found})
        return
    put(comparison.title)
    put(", ".join(f"{key} {value}" for key, value in comparison.settings.items()))
    put()
    rows = [(name, one) for name, one in found.items()]
    columns = [c for c in rows[0][1] if c != "intervals_95"] if rows else []
    table(["policy", *columns], [[name, *(_cell(c, one) for c in columns)] for name, one in rows])


def _cell(column: str, figures: dict[str, Any]) -> str:
    if column not in figures:
        return "-"
    text, interval = number(column, figures[column]), figures["intervals_95"].get(column)
    return text if interval is None else f"{text} ({number(column, interval[0])} to {number(column, interval[1])})"


def number(column: str, value: float) -> str:
    """A figure for people: gaps in per cent, counts whole, all else with two decimals."""
    if "gap" in column:
        return f"{100 * value:.1f} %"
    return str(value) if isinstance(value, int) else f"{value:.2f}"


def _page(path: Path, comparison: Comparison, found: dict[str, dict[str, object]], plots: list[Plot]) -> None:
    from spotsurfer.sim.page import page

    columns = list(dict.fromkeys(c for one in found.values() for c in one if c != "intervals_95"))
    cells = [[name, *(_cell(c, one) for c in columns)] for name, one in found.items()]
    about = {**comparison.settings, "intervals:": "95 % of a bootstrap over windows"}
    save_page(path, page(comparison.title, about, ["policy", *columns], cells, plots))


def save_page(path: Path, text: str) -> None:
    """Write the page, and say where it is. Raises OutputExists, OSError as `write` does."""
    write(path, text)
    tell(f"The page is {path}.")
