"""`spotsurfer demo`: an undisturbed and a surfed run side by side, with a live view."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from spotsurfer.agent_runtime import provision
from spotsurfer.config.settings import Settings, load_settings
from spotsurfer.demo import environment, runs
from spotsurfer.demo.environment import Stage
from spotsurfer.demo.runs import Story, failures, figures
from spotsurfer.model.errors import NotRoot, SpotsurferError

# ---- Live view: the machines, their work, and the last moments; plain lines without a terminal.

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
    """One row for each machine."""
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


# ---- Command: reads, an undisturbed and a surfed run side by side, the comparison.

EXAMPLES = "Examples: spotsurfer demo; spotsurfer demo --dir /srv/demo --json"


def main(arguments: Sequence[str] | None = None, config: Path | None = None) -> int:
    """Run it; 0 if every promise was kept. `config` names the configuration with the agent's runtime."""
    parser = argparse.ArgumentParser(prog="spotsurfer demo", description=__doc__, epilog=EXAMPLES)
    parser.add_argument("--dir", type=Path, default=Path("build/demo"), help="where everything is kept (default: build/demo)")
    parser.add_argument("--json", action="store_true", help="print result.json at the end, and nothing else on stdout")
    options = parser.parse_args(arguments)
    console = Console(stderr=options.json)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    result = run(options.dir.resolve(), console, load_settings(config))
    if options.json:
        print(json.dumps(result, indent=2))
    broken = failures(result)
    for name in broken:
        console.print(f"NOT SHOWN: {name}", style="bold red")
    console.print(f"written to {options.dir}/result.json" if not broken else "the demonstration failed")
    return 1 if broken else 0


def run(folder: Path, console: Console, settings: Settings) -> dict[str, Any]:
    """All acts; leaves no process, box or mount behind, whatever happens."""
    if os.geteuid() != 0:
        raise NotRoot("the demonstration makes boxes on this host, which needs root: use sudo")
    environment.check()
    runtime = provision.ready(settings, lambda line: console.print(line, markup=False))
    console.print("drawing 40-fold reads from the genome of E. coli 536 (once)")
    files = environment.make(folder / "reads")
    config, job = environment.write(folder / "surf", folder / "reads", runtime.path.parent, runs.SCENARIO)
    stage = Stage(config, folder / "surf")
    if (folder / "surf" / "data").exists():  # of an earlier demonstration: boxes first, then its files
        stage.clean()
        shutil.rmtree(folder / "surf" / "data")
    console.print(f"two runs of the same command at the same time: {' '.join(environment.COMMAND)}", markup=False)
    console.print("  one undisturbed on this host, one surfing: spotsurfer submit assembly.toml")
    undisturbed = runs.PlainRun(environment.COMMAND, folder / "undisturbed", files, environment.RESULT)
    try:
        return _surf(stage, folder, job, undisturbed, console)
    finally:
        # A second Ctrl-C must not stop the cleaning, nor must a second SIGTERM, as `timeout` and make send.
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        undisturbed.stop()
        stage.stop()
        for line in stage.clean():
            console.print(f"cleaned: {line}", markup=False)
        for number, handler in before.items():
            signal.signal(number, handler)


def _surf(stage: Stage, folder: Path, job: Path, undisturbed: runs.PlainRun, console: Console) -> dict[str, Any]:
    stage.start()
    with View(console) as view:
        story = Story(stage, stage.call("submit", str(job))["id"], view.say)

        def draw(now: Story) -> None:
            undisturbed.poll()
            view.draw(now)

        story.play(draw)
    if story.show["state"] != "succeeded":
        raise SpotsurferError(f"the job {story.show['state']}: {story.show['reason']}")
    results = folder / "surf" / "results"
    shutil.rmtree(results, ignore_errors=True)
    stage.call("outputs", story.job, "--to", str(results))
    costs = stage.call("report", story.job)["attempts"]
    beside = undisturbed.wait(lambda text: console.print(text))
    result = figures(story, costs, beside, runs.md5_of(results / environment.RESULT), folder / "surf" / "data" / "store")
    (folder / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    report(console, result, costs)
    return result


if __name__ == "__main__":
    sys.exit(main())
