"""Resident memory of a real controller: when it has started, after an upload, with jobs, after them, after many short ones.

`python -m bench.memory.controller` prints one JSON object, sizes in bytes. Needs root and the agent's runtime.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.memory.place import controller
from spotsurfer.demo.environment import Stage
from spotsurfer.web.client import Client, connect

JOBS = 10
SHORT_JOBS = 50
UPLOAD_MIB = 256
SETTLE_SECONDS = 20.0  # for what a phase begins in the background
WAIT_SECONDS = 900.0
RUNNING, OVER = "running", ("succeeded", "failed", "cancelled")


def measure(
    jobs: int = JOBS, short_jobs: int = SHORT_JOBS, hold_seconds: float = 0.0, tick_seconds: float = 1.0
) -> dict[str, Any]:
    """Bytes of a new controller's process after each phase, and its peak until then.

    `hold_seconds`: how long the jobs run before they are measured a second time.
    """
    phases: dict[str, dict[str, int]] = {}
    with controller(tick_seconds, instances_max=jobs + 2) as stage:
        client = connect(stage.config)

        def measured(phase: str, settle_seconds: float = SETTLE_SECONDS) -> None:
            time.sleep(settle_seconds)
            phases[phase] = resident(stage.pid)

        measured("at start")
        _upload(client, UPLOAD_MIB)
        measured(f"after an upload of {UPLOAD_MIB} MiB", 1.0)
        long = [_submit(client, f"long-{n}", ["/bin/sleep", "86400"]) for n in range(jobs)]
        _wait(lambda: all(_running(client, job) for job in long))
        measured(f"with {jobs} jobs")
        if hold_seconds:
            measured(f"with {jobs} jobs, {hold_seconds:.0f} s later", hold_seconds)
        for job in long:
            client.post(f"/v1/jobs/{job}/cancel")
        _wait(lambda: _all_over(client))
        measured("after them")
        for n in range(short_jobs):
            _submit(client, f"short-{n}", ["/bin/true"])
        _wait(lambda: _all_over(client))
        measured(f"after {short_jobs} short jobs")
        restarted(stage)
        measured("after a restart")
    return {"jobs": jobs, "short_jobs": short_jobs, "tick_seconds": tick_seconds, "phases": phases}


def restarted(stage: Stage) -> None:
    """Stop the controller and start it again on the same data."""
    stage.stop()
    stage.start()


def resident(pid: int) -> dict[str, int]:
    """Resident memory of a process, and the most that it ever had; bytes."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return {name: int(lines[key].split()[0]) << 10 for name, key in (("resident", "VmRSS"), ("peak", "VmHWM"))}


def _submit(client: Client, name: str, command: list[str]) -> str:
    job = str(client.post("/v1/ids", {"name": name})["job"])
    client.put(f"/v1/jobs/{job}", {"spec": {"name": name, "command": command, "memory_bytes": 1 << 28}})
    return job


def _upload(client: Client, mib: int) -> None:
    """An input of a job that is never submitted."""
    job, piece = str(client.post("/v1/ids", {"name": "upload"})["job"]), os.urandom(1 << 20)
    client.upload(f"/v1/jobs/{job}/inputs/reads.fq", (piece for _ in range(mib)), mib << 20)
    client.delete(f"/v1/jobs/{job}/inputs")


def _running(client: Client, job: str) -> bool:
    return any(a["state"] == RUNNING for a in client.get(f"/v1/jobs/{job}")["attempts"])


def _all_over(client: Client) -> bool:
    jobs = client.get("/v1/jobs")["jobs"]
    return all(j["state"] in OVER and all(a["state"] in ("released", "refused") for a in j["attempts"]) for j in jobs)


def _wait(good: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not good():
        if time.monotonic() > end:
            raise TimeoutError(f"the jobs did not come as far in {WAIT_SECONDS:.0f} s")
        time.sleep(1.0)


def main() -> None:
    """See `--help`."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory.controller", description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS, help="long jobs at a time (default %(default)s)")
    parser.add_argument("--short-jobs", type=int, default=SHORT_JOBS, help="short jobs after them (default %(default)s)")
    parser.add_argument("--hold-seconds", type=float, default=0.0, help="measure the long jobs again after so long")
    parser.add_argument("--tick-seconds", type=float, default=1.0, help="of the controller (default %(default)s)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that boxes are given back
    print(json.dumps(measure(options.jobs, options.short_jobs, options.hold_seconds, options.tick_seconds), indent=2))


if __name__ == "__main__":
    main()
