"""A controller that has little to do costs little: ten jobs that run, at the default intervals."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from support.fleet import MARKS, Fleet, fleet

pytestmark = MARKS
JOBS = 10
WATCHED_SECONDS = 30
CPU_SHARE_MAX = 0.01
MEMORY_BYTES_MAX = 150_000_000
DEFAULTS = """\
[controller]
data_dir = "{data}"
[limits]
instances_max = 12
[provider.local]
disk_bytes = 1073741824
"""


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_bytes(pid: int) -> int:
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def watched(pid: int) -> Iterator[float]:
    """Its share of a core, three times: what else runs on the host makes the same work dearer, never cheaper."""
    for _ in range(3):
        before = cpu_seconds(pid)
        time.sleep(WATCHED_SECONDS)
        yield (cpu_seconds(pid) - before) / WATCHED_SECONDS


def all_run(world: Fleet, jobs: list[str]) -> bool:
    return all(world.show(job)["phase"] == "running" for job in jobs)


def test_idle_with_ten_jobs(tmp_path: Path) -> None:
    with fleet(tmp_path, config=DEFAULTS) as world:
        jobs = [world.submit(10, pause=3600, name=f"idle-{i}") for i in range(JOBS)]
        world.wait(lambda: all_run(world, jobs), "ten running jobs", 120)
        assert world.controller is not None
        pid = world.controller.pid
        shares = list[float]()
        for share in watched(pid):
            shares.append(share)
            if share < CPU_SHARE_MAX:
                break
        memory = memory_bytes(pid)
        print(f"idle controller with {JOBS} jobs: {shares} of a core, {memory / 1e6:.0f} MB")
        assert min(shares) < CPU_SHARE_MAX, shares
        assert memory < MEMORY_BYTES_MAX
