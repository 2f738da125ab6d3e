"""How long the commands take that people type most, beside Python doing nothing: `--help`, `--version`, `list` of many jobs.

`python -m bench.memory.commands` prints one JSON object, seconds of whole processes. Needs root. On a machine that is not idle
look at `cpu` and `least`; the controller's own share of `list` is in the wall time alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

from spotsurfer_wire.messages import AgentState, Report

from bench.memory.place import controller
from spotsurfer import __version__
from spotsurfer.model.job import Attempt, AttemptNumber, AttemptState, InstanceId, Job, JobId, JobSpec, JobState
from spotsurfer.model.market import Market, Pool
from spotsurfer.state import jobs as rows
from spotsurfer.state import observations
from spotsurfer.state.db import open_database

JOBS = 100
ROUNDS = 15
SELF = [str(Path(sys.executable).with_name("spotsurfer"))]  # as it is installed
NOTHING = "python -c pass"
COMMANDS = {
    NOTHING: [sys.executable, "-c", "pass"],
    "--help": [*SELF, "--help"],
    "--version": [*SELF, "--version"],
    "list": [*SELF, "list"],
    "list --json": [*SELF, "list", "--json"],
}


def measure(jobs: int = JOBS, rounds: int = ROUNDS) -> dict[str, Any]:
    """For each command the median and the least of its wall times and the least of its processor times, seconds.

    `ratio`: of its median to that of Python doing nothing.

    The commands take turns, so that a busy moment of the machine hits all of them.
    """
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    used: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with controller(before=lambda data: fill(data, jobs)) as stage:
        environment = {**os.environ, "SPOTSURFER_CONFIG": str(stage.config)}
        for _ in range(rounds):
            for name, command in COMMANDS.items():
                began, before = time.monotonic(), _children_seconds()
                subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
                times[name].append(time.monotonic() - began)
                used[name].append(_children_seconds() - before)
    nothing = median(times[NOTHING])
    return {
        "jobs": jobs,
        "rounds": rounds,
        "commands": {
            name: {
                "median": round(median(t), 4),
                "least": round(min(t), 4),
                "cpu": round(min(used[name]), 4),
                "ratio": round(median(t) / nothing, 1),
            }
            for name, t in times.items()
        },
    }


def _children_seconds() -> float:
    """Processor time of all processes that were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def fill(data_dir: Path, jobs: int) -> None:
    """The database of a controller that ran so many jobs, each on two machines, all ended."""
    end = datetime.now(UTC) - timedelta(hours=1)  # noqa: TID251 - of this very day, as a user's are
    engine = open_database(data_dir / "state.db")
    with engine.begin() as c:
        for n in range(jobs):
            job = JobId(f"assembly-{n:06x}")
            spec = JobSpec(f"assembly-{n}", ("megahit", "-t", "2", "-1", "reads_1.fq.gz", "-2", "reads_2.fq.gz"), cpus=2)
            rows.add_job(c, Job(job, spec, JobState.SUCCEEDED, 1, end - timedelta(minutes=n), exit_code=0, ended_at=end))
            for number in (1, 2):
                rows.add_attempt(c, _attempt(job, number, end - timedelta(minutes=n)))
                report = Report(
                    job, number, f"box-{job}-{number}", __version__, 9, AgentState.FINISHED, head=3, cpu_seconds=3000.0
                )
                observations.set_usage(c, report, end)
    engine.dispose()


def _attempt(job: JobId, number: int, at: datetime) -> Attempt:
    return Attempt(
        job=job,
        number=AttemptNumber(number),
        state=AttemptState.RELEASED,
        since=at,
        pool=Pool("local", "local", "local-a", "m6i.large"),
        market=Market.SPOT,
        price_usd_micros_per_hour=30_000,
        list_price_usd_micros_per_hour=96_000,
        token=f"{job}-{number}",
        planned_at=at,
        instance=InstanceId(f"box-{job}-{number}"),
        granted_at=at,
        launched_at=at,
        released_at=at + timedelta(minutes=50),
        reason="finished",
    )


def table(measured: dict[str, Any]) -> str:
    """The same for people."""
    lines = [f"{'command':<16}{'median':>10}{'least':>10}{'cpu':>10}{'ratio':>8}"]
    for name, t in measured["commands"].items():
        lines.append(
            f"{name:<16}{t['median'] * 1000:>7.0f} ms{t['least'] * 1000:>7.0f} ms{t['cpu'] * 1000:>7.0f} ms{t['ratio']:>8.1f}"
        )
    return "\n".join(lines)


def main() -> None:
    """See `--help`."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory.commands", description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS, help="that are listed (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="calls of each command (default %(default)s)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that boxes are given back
    measured = measure(options.jobs, options.rounds)
    print(table(measured), file=sys.stderr)
    print(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
