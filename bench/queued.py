"""`make bench-queued`: processor time of a tick with many queued jobs, in a virtual world; writes the table of docs/arrays.md.

Two machines at most: so two jobs run, and all others wait. `--only jobs` runs on commits without arrays, too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from simulation.chances import calm
from simulation.world import LIMITS, World

from bench.report import ROOT, between, table

COUNTS = (100, 1_000, 10_000)
BEFORE = ROOT / "bench/results/queued-before.json"  # the same, of commit 093297e7: before there were arrays
PAGE = ROOT / "docs/arrays.md"
TICKS, SECONDS_MAX = 10, 60.0


def _empty() -> World:
    world = World(1, jobs=0, work=100_000, chances=calm(), limits=replace(LIMITS, instances_max=2))
    world.users_busy = False
    return world


def jobs(count: int) -> World:
    """So many jobs, submitted one by one."""
    world = _empty()
    for _ in range(count):
        world.submit()
    return world


def tasks(count: int, limit: str = "") -> World:
    """An array of so many tasks."""
    from spotsurfer.controller.jobs.batches import rows_of
    from spotsurfer.model.job import JobId, JobSpec
    from spotsurfer.state import dependencies
    from spotsurfer.state import jobs as rows

    world = _empty()
    spec = JobSpec(name="sweep", command=("work", "{task}"), array=f"1-{count}{limit}")
    with world.engine.begin() as c:
        made = rows.add_jobs(c, rows_of(JobId("sweep"), spec, world.clock.now(), "ada"))
        dependencies.add(c, [(job, ()) for job in made])
    return world


WORLDS: dict[str, Callable[[int], World]] = {
    "jobs": jobs,
    "tasks of an array": tasks,
    "tasks of an array with `%2`": lambda count: tasks(count, "%2"),
}


def milliseconds(world: World) -> float:
    """Processor time of a tick that does nothing: the median of ten, or of those of a minute."""
    for _ in range(3):
        world.loop.tick()
    found = list[float]()
    while len(found) < TICKS and sum(found) < 1000 * SECONDS_MAX:
        began = time.process_time()
        world.loop.tick()
        found.append(1000 * (time.process_time() - began))
    return round(statistics.median(found), 1)


def main() -> None:
    """See `--help`."""
    parser = argparse.ArgumentParser(prog="python -m bench.queued", description=__doc__)
    parser.add_argument("--only", choices=[*WORLDS], help="one kind")
    parser.add_argument("--out", type=Path, default=ROOT / "build/bench/queued.json", help="the figures (default %(default)s)")
    options = parser.parse_args()
    names = [options.only] if options.only else [*WORLDS]
    found: dict[str, dict[str, float]] = {name: {} for name in names}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name, count in itertools.product(names, COUNTS):
        found[name][str(count)] = milliseconds(WORLDS[name](count))
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    before = {f"{name}, before arrays": row for name, row in json.loads(BEFORE.read_text()).items()}
    rows = [(name, *(_words(row.get(str(n))) for n in COUNTS)) for name, row in {**before, **found}.items()]
    text = table(["queued", *(f"{n:,}" for n in COUNTS)], rows)
    print(text)
    if not options.only:  # one machine, one run: else the table would mix several
        PAGE.write_text(between(PAGE.read_text(), "queued", text))


def _words(found: float | None) -> str:
    return "-" if found is None else f"{found / 1000:.1f} s" if found >= 1000 else f"{found:.0f} ms"


if __name__ == "__main__":
    main()
