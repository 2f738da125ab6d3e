"""The live view: the machines, what each did, and the last moments; plain lines where there is no terminal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from spotsurfer.demo.story import Story

Json = dict[str, Any]
LAST = 12
QUIET = {"attempt", "asked"}  # too fine for a person watching; `spotsurfer watch` shows them


class View:
    """Draws into a terminal, or prints each moment once."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed = 0
        self._told: list[str] = []
        self._live: Live | None = None

    def __enter__(self) -> View:
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """A line of the narrator."""
        if self._live is None:
            self._console.print(f"{text}", highlight=False, markup=False, soft_wrap=True)
        else:
            self._live.console.print(Text(text, style="bold"))

    def draw(self, story: Story) -> None:
        """The state of things."""
        if self._live is not None:
            self._live.update(Group(machines(story), moments(story.moments)))
            return
        for m in story.moments[self._printed :]:
            if m["kind"] not in QUIET:
                self._console.print(line(m), highlight=False, markup=False, soft_wrap=True)
        self._printed = len(story.moments)


def machines(story: Story) -> Table:
    """One row a machine."""
    table = Table("machine", "market", "state", "CPU", "saves", "frozen", "USD", title=f"{story.job}: {story.show['phase']}")
    for a in story.show["attempts"]:
        table.add_row(
            f"{a['number']}  {a['instance_type']} {a['zone']}",
            a["market"],
            a["state"],
            f"{a['cpu_seconds']:.0f} s",
            str(a["saves"]),
            f"{a['frozen_seconds']:.1f} s",
            f"{a['usd_micros'] / 1e6:.4f}",
        )
    return table


def moments(all_of_them: Sequence[Json]) -> Text:
    """The newest moments."""
    shown = [m for m in all_of_them if m["kind"] not in QUIET][-LAST:]
    return Text("\n".join(line(m) for m in shown))


def line(m: Json) -> str:
    """One moment."""
    at = datetime.fromisoformat(m["at"]).astimezone()
    machine = f"#{m['attempt']}" if m["attempt"] else "  "
    return f"{at:%H:%M:%S} {machine:>3} {m['kind']:<9} {m['text']}"


def report(console: Console, result: Json, costs: Sequence[Json]) -> None:
    """The cost table and the verdict."""
    table = Table("machine", "market", "time", "USD", "on-demand", "why it ended", title="What it cost")
    for c in costs:
        table.add_row(
            f"{c['attempt']}  {c['pool']}",
            c["market"],
            f"{c['seconds']:.0f} s",
            f"{c['usd_micros'] / 1e6:.4f}",
            f"{c['usd_micros_on_demand'] / 1e6:.4f}",
            c["ended"],
        )
    console.print(table)
    for key in (
        "usd",
        "usd_on_demand",
        "usd_same_machines_on_demand",
        "moves",
        "unnoticed_losses",
        "controller_kills",
        "work_lost_seconds",
        "frozen_seconds",
        "job_cpu_ratio",
        "identical",
    ):
        console.print(f"{key:>28}  {result[key]}", highlight=False)
