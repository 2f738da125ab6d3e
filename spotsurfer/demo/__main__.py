"""`spotsurfer demo`: reads, an undisturbed and a surfed run side by side, the comparison."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from spotsurfer import agentruntime
from spotsurfer.demo import plain, reads, scene
from spotsurfer.demo.result import failures, figures
from spotsurfer.demo.stage import Stage
from spotsurfer.demo.story import Director, Story
from spotsurfer.demo.view import View, report
from spotsurfer.model.errors import NotRoot, SpotsurferError
from spotsurfer.settings import Settings, load_settings

EXAMPLES = "Examples: spotsurfer demo; spotsurfer demo --dir /srv/demo --json"


def main(arguments: Sequence[str] | None = None, config: Path | None = None) -> int:
    """Run it; 0 when every promise was kept. `config` says where the agent's runtime lies."""
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
    """All acts; whatever happens, no process, box or mount is left."""
    if os.geteuid() != 0:
        raise NotRoot("the demonstration makes boxes on this host, which needs root: use sudo")
    reads.check()
    runtime = agentruntime.ready(settings, lambda line: console.print(line, markup=False))
    console.print("drawing 40-fold reads from the genome of E. coli 536 (once)")
    files = reads.make(folder / "reads")
    config, job = scene.write(folder / "surf", folder / "reads", runtime.path.parent)
    stage = Stage(config, folder / "surf")
    _clear(stage, folder / "surf" / "data")
    console.print(f"two runs of the same command at the same time: {' '.join(scene.COMMAND)}", markup=False)
    console.print("  one undisturbed on this host, one surfing: spotsurfer submit assembly.toml")
    undisturbed = plain.PlainRun(scene.COMMAND, folder / "undisturbed", files, scene.RESULT)
    try:
        return _surf(stage, folder, job, undisturbed, console)
    finally:
        # A second Ctrl-C must not stop the cleaning, nor a SIGTERM that comes twice, as from `timeout` and from make.
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
        undisturbed.stop()
        stage.stop()
        for line in stage.clean():
            console.print(f"cleaned: {line}", markup=False)
        for number, handler in before.items():
            signal.signal(number, handler)


def _clear(stage: Stage, data: Path) -> None:
    """What an earlier demonstration left: boxes first, then its files."""
    if data.exists():
        stage.clean()
        shutil.rmtree(data)


def _surf(stage: Stage, folder: Path, job: Path, undisturbed: plain.PlainRun, console: Console) -> dict[str, Any]:
    stage.start()
    story = Story(stage.call("submit", str(job))["id"])
    with View(console) as view:

        def draw(now: Story) -> None:
            undisturbed.poll()
            view.draw(now)

        Director(stage, story, view.say).play(draw)
    if story.show["state"] != "succeeded":
        raise SpotsurferError(f"the job {story.show['state']}: {story.show['reason']}")
    results = folder / "surf" / "results"
    shutil.rmtree(results, ignore_errors=True)
    stage.call("outputs", story.job, "--to", str(results))
    costs = stage.call("report", story.job)["attempts"]
    beside = undisturbed.wait(lambda text: console.print(text))
    result = figures(story, costs, beside, plain.md5(results / scene.RESULT), folder / "surf" / "data" / "store")
    (folder / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    report(console, result, costs)
    return result


if __name__ == "__main__":
    sys.exit(main())
