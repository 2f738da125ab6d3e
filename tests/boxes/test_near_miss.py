"""A job grows past the memory of its machine: frozen, saved, continued on a larger one, and never killed if it can be saved."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spotsurfer_wire.linux import cgroups, procfs
from support.fleet import MARKS, Fleet, Json, fleet, with_kept, with_pools
from support.patience import FACTOR

pytestmark = MARKS
SMALL, LARGE = "t3.micro", "t3.small"  # 1 and 2 GiB
# Takes a mebibyte a step, and looks at the end whether all of it is what it was.
GROWS = """\
import hashlib, sys, time
steps, pause = int(sys.argv[1]), float(sys.argv[2])
h, blocks, doubles = b"begin", [], open("child.txt", "w")
for i in range(steps):
    for _ in range(200): h = hashlib.sha256(h).digest()
    blocks.append(h * 32768)
    doubles.write(f"{2 * i}\\n")
    print(i, h.hex(), flush=True)
    time.sleep(pause)
doubles.close()
assert all(b == b[:32] * 32768 for b in blocks)
open("result.txt", "w").write(blocks[-1][:32].hex() + "\\n")
"""
# Takes what memory is left in the group of a process, until it is killed. A file in memory is no process's: who made it lives.
TAKES = """\
import contextlib, os, pathlib, sys
group, victim = pathlib.Path(sys.argv[1]), pathlib.Path("/proc", sys.argv[2], "statm")
(group / "cgroup.procs").write_text("0")
file = os.memfd_create("takes")
with contextlib.suppress(OSError):  # it is gone
    while victim.read_text().split()[0] != "0": os.write(file, b"x" * (4 << 20))
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    config = with_pools([f"local-a/{SMALL}", f"local-b/{LARGE}"], 4 << 30)
    # No live saves: they need memory, too, and a machine of 1 GiB has little.
    with fleet(tmp_path_factory.mktemp("growing"), 86400, config=config) as made:
        yield made


def grown(world: Fleet, job: str) -> Json:
    """The job when it has ended as if nothing had been, after its start on the small machine."""
    ended = world.wait_end(job, 240)
    assert (ended["state"], ended["exit_code"]) == ("succeeded", 0)
    assert [a["instance_type"] for a in ended["attempts"] if a["granted_at"]] == [SMALL, LARGE]
    world.assert_identical(job)
    return ended


@pytest.mark.slow
@pytest.mark.parametrize("time", range(1, 21))
def test_twenty_times_out_of_twenty(world: Fleet, time: int) -> None:
    """At 50 MB a second past the memory of its machine, whenever the looks of guard and agent fall."""
    job = world.submit(1100, pause=0.018 + time / 1e5, text=GROWS)
    grown(world, job)
    assert len(world.moments(job, "near miss")) == 1
    assert not world.moments(job, "out of memory")


def test_one_without_checkpoints_is_killed_and_begins_again_where_there_is_more(world: Fleet) -> None:
    job = world.submit(1100, pause=0, text=GROWS, engine="none")
    ended = grown(world, job)
    assert not world.moments(job, "near miss")
    [killed] = world.moments(job, "out of memory")
    assert killed["text"].startswith("the kernel killed it, because the 1.0 GiB of its machine ended")
    assert killed["data"]["used_bytes"] > 700 << 20
    assert "the kernel killed it" in next(a["reason"] for a in ended["attempts"] if a["instance_type"] == SMALL)
    assert not world.moments(job, "retry")


def test_one_with_a_checkpoint_that_is_killed_goes_on_from_it(world: Fleet) -> None:
    """The machine's memory ends, though the job took little of it: other programs of the machine did."""
    job = world.submit(500, pause=0.05 * FACTOR, text=GROWS)
    world.wait_line(job, 100)
    world.client.post(f"/v1/jobs/{job}/checkpoint")
    [saved] = world.wait(lambda: world.moments(job, "saved"), "a checkpoint")
    world.wait_line(job, 300)
    box = world.box(job, 1)
    agent, program = world.agent_pid(box), world.job_pid(box)
    groups = cgroups.places(procfs.text(agent, "cgroup"), procfs.text("self", "mountinfo"))
    folder, _ = groups.get("memory") or groups[cgroups.UNIFIED]
    subprocess.run([sys.executable, "-c", TAKES, str(folder), str(program)], check=True)
    grown(world, job)
    assert len(world.moments(job, "out of memory")) == 1
    assert [m["data"]["checkpoint"] for m in world.moments(job, "granted")] == [None, saved["data"]["checkpoint"]]
    assert not world.moments(job, "near miss")


def test_it_ends_identical_on_a_larger_machine(world: Fleet) -> None:
    job = world.submit(1300, pause=0.02, text=GROWS)
    ended = grown(world, job)
    missed = world.moments(job, "near miss")
    assert len(missed) == 1
    assert missed[0]["data"]["machine_bytes"] == 1 << 30
    assert missed[0]["data"]["used_bytes"] < 1 << 30
    world.assert_one_owner(job)
    windows = world.client.get(f"/v1/jobs/{job}/usage")["windows"]
    assert max(w["resident_bytes"] for w in windows) > 1250 << 20  # a look a second: the last mebibytes may be missed
    assert {w["attempt"] for w in windows} == {1, max(a["number"] for a in ended["attempts"] if a["granted_at"])}
    grew = [w["growth_bytes_per_second"] for w in windows if w["attempt"] == 1]  # on the other its memory was brought first
    assert 10 << 20 < max(grew) < 400 << 20


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "kind"), [("criu", "near miss"), ("none", "out of memory")])
def test_who_takes_more_than_asked_for_leaves_its_neighbour_alone(tmp_path: Path, engine: str, kind: str) -> None:
    """Both asked for as much, so each has half of the machine; one takes more than that."""
    config = with_kept(3, with_pools([f"local-a/{SMALL}", f"local-b/{LARGE}"], 2 << 30))
    asks: dict[str, Any] = {"cpus": 1, "memory_bytes": 256 << 20}
    with fleet(tmp_path, 86400, config) as world:
        neighbour = world.submit(600, name="neighbour", **asks)
        world.wait_line(neighbour, 1)
        greedy = world.submit(500, pause=0.02, text=GROWS, name="greedy", engine=engine, **asks)
        world.wait_state(greedy, "running")
        assert world.box(greedy, 1) == world.box(neighbour, 1)
        for job in (greedy, neighbour):
            assert world.wait_end(job, 240)["state"] == "succeeded"
            world.assert_identical(job)
        assert [a["instance"] for a in world.show(neighbour)["attempts"]] == [world.box(greedy, 1)]
        [told] = world.moments(greedy, kind)
        assert told["data"]["used_bytes"] < 512 << 20
