"""A restore that fails after a planned move's final save: the job goes on where it was, within seconds, as if nothing had been.

The final save waits for us (its hook looks for a file), and the agent of the next machine is stopped meanwhile, until what it
needs has been spoilt: so each wrong comes after that save, and none is seen beforehand.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from spotsurfer_providers.local import manual_control
from spotsurfer_providers.local.box.cgroups import BoxGroup, host_hierarchies
from spotsurfer_providers.local.box.records import Home
from support.fleet import CONFIG, MARKS, PROGRAM, Fleet, fleet

pytestmark = MARKS
STEPS = 500
GO = "var/lib/spotsurfer/job/scratch/work/go"
OLDER = "tmp/cpuinfo"  # of a box
MEBIBYTES = 200  # of the job: more than what else a box holds, or the kernel would kill that for it
WAITS = ["/bin/sh", "-c", "while [ ! -e /var/lib/spotsurfer/work/go ]; do sleep 0.1; done"]
BACK_SECONDS = 10.0  # from the failure until the job runs at its source again


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("keeping"), 600, CONFIG.replace("[limits]", "[limits]\nwarm_wait_seconds = 0")) as made:
        yield made


def damaged_image(world: Fleet, job: str, _box: str) -> None:
    manifest = world.data / "store/jobs" / job / "checkpoints" / str(world.head(job)[-1].checkpoint) / "MANIFEST"
    manifest.write_bytes(manifest.read_bytes()[:-100])


def missing_file(world: Fleet, job: str, box: str) -> None:
    """A library that the job has loaded is not there on the next machine."""
    maps = Path(f"/proc/{world.job_pid(world.box(job, 1))}/maps").read_text()
    loaded = Path(next(line.split()[-1] for line in maps.splitlines() if "lib-dynload" in line))
    mounted(world, box, ["tmpfs", "-t", "tmpfs", str(loaded.parent)])


def older_processor(world: Fleet, _job: str, box: str) -> None:
    """It can do less than the one on which the job was saved."""
    less = re.sub(r"(?m)^(flags\s*:).*$", r"\1 fpu sse2", Path("/proc/cpuinfo").read_text())
    (world.root(box) / OLDER).write_text(less)
    mounted(world, box, ["--bind", f"/{OLDER}", "/proc/cpuinfo"])


def too_little_memory(world: Fleet, _job: str, box: str) -> None:
    """Half of what the job needs beside what is used by now."""
    folders = BoxGroup(host_hierarchies(), Home(world.data).group_name(box)).folders()
    limit = next(f / n for f in folders for n in ("memory.max", "memory.limit_in_bytes") if (f / n).exists())
    counts = dict(line.split() for line in limit.with_name("memory.stat").read_text().splitlines())
    limit.write_text(str(int(counts.get("anon") or counts["total_rss"]) + (MEBIBYTES << 19)))


def mounted(world: Fleet, box: str, words: list[str]) -> None:
    """Mount something in a box, where its agent and all that it starts see it."""
    pid = manual_control.box_status(world.data, box)["pid"]
    subprocess.run(["nsenter", "--target", str(pid), "--mount", "--", "mount", *words], check=True)


def vanished_target(world: Fleet, _job: str, box: str) -> None:
    world.kill(manual_control.box_status(world.data, box)["pid"])


# With what the attempt's reason says of it.
WRONGS: dict[str, tuple[Callable[[Fleet, str, str], None], str]] = {
    "damaged image": (damaged_image, "manifest"),
    "missing file": (missing_file, "lib-dynload"),
    "too little memory": (too_little_memory, "memory"),
    "older processor": (older_processor, "cpu instructions"),
    "vanished target": (vanished_target, ""),
}


@pytest.mark.parametrize("wrong", WRONGS)
def test_the_job_goes_on_where_it_was(world: Fleet, wrong: str) -> None:
    harm, reason = WRONGS[wrong]
    job = world.submit(STEPS, text=PROGRAM.replace("* 24", f"* {MEBIBYTES}"), name="keeps", before_freeze=WAITS)
    world.wait_line(job, 20)
    world.client.post(f"/v1/jobs/{job}/move", {})
    world.wait_state(job, "draining", 1)
    box = world.box(job, 2)
    agent = world.agent_pid(box)
    os.kill(agent, signal.SIGSTOP)
    try:
        (world.root(world.box(job, 1)) / GO).touch()
        world.wait(lambda: world.head(job)[-1].epoch == 2, "the grant")
        harm(world, job, box)
    finally:
        with suppress(ProcessLookupError):
            os.kill(agent, signal.SIGCONT)
    failed = world.wait(lambda: world.attempt(job, "lost", 2) or world.attempt(job, "releasing", 2), "the failure")
    began = time.monotonic()
    world.wait(lambda: world.attempt(job, "running", 1), "the job at its source")
    lines = len(world.output(job).splitlines())
    world.wait(lambda: len(world.output(job).splitlines()) > lines, "its next line")
    assert time.monotonic() - began < BACK_SECONDS, world.explain()
    assert failed["reason"]
    assert reason in failed["reason"]
    world.wait_end(job)
    world.assert_identical(job)
    world.assert_one_owner(job)
    assert len(world.show(job)["attempts"]) == 2
