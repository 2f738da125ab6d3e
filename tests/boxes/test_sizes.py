"""A running job is moved down and up by its size policy, and ends identical, for less than on the machine it asked for."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import pytest
from support.fleet import MARKS, Fleet, fleet, with_pools

pytestmark = MARKS
TYPES = ("t3.micro", "t3.small", "t3.medium", "t3.large")  # 1, 2, 4 and 8 GiB; each costs twice as much as the one before
ASKED = "t3.large"
LOOKS = "[size]\nlook_seconds = 10\n"
PHASE, PHASES = 60, 4  # steps of each phase, and phases: small, large, small, large
# As an assembler does it in turns: a small graph, then sorting in memory, here 1.2 GiB. A phase ends when it is told to.
PROGRAM = f"""\
import hashlib, signal, sys, time
steps, pause, told = int(sys.argv[1]), float(sys.argv[2]), 0
def go(*_):
    global told
    told += 1
signal.signal(signal.SIGUSR1, go)
h, blocks, doubles = b"begin", [], open("child.txt", "w")
for i in range(steps):
    phase = i // {PHASE}
    while told < phase: time.sleep(0.05)
    for _ in range(200): h = hashlib.sha256(h).digest()
    if phase % 2:
        if len(blocks) < 24: blocks.append(h * (50 * 32768))
    elif blocks:
        assert all(b == b[:32] * (50 * 32768) for b in blocks)
        blocks.clear()
    doubles.write(f"{{2 * i}}\\n")
    print(i, h.hex(), flush=True)
    time.sleep(pause)
doubles.close()
open("result.txt", "w").write(h.hex() + "\\n")
"""
FORETELLS = "import spotsurfer_job\nspotsurfer_job.stage('sort', memory='1229M')\n"
THRESHOLD = {
    "size_policy": "threshold",
    "size_parameters": {"mem_lower": 30, "lower_seconds": 10, "cool_down_seconds": 0, "step": 3},
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    config = with_pools([f"local-a/{t}" for t in TYPES], 4 << 30, LOOKS)
    # No live saves but before moves: they need memory, too, and a machine of 1 GiB has little.
    with fleet(tmp_path_factory.mktemp("sizes"), 86400, config=config) as made:
        yield made


def test_it_goes_down_and_up_twice_and_its_next_run_begins_where_its_peak_has_room(world: Fleet) -> None:
    job = world.submit(PHASE * PHASES, pause=0.05, text=PROGRAM, memory_bytes=5 << 30, **THRESHOLD)
    for phase, kind in enumerate(("t3.micro", "t3.small", "t3.micro", "t3.small")):
        runs = world.wait(lambda kind=kind: runs_on(world, job, kind), f"{job} on {kind}", 240)
        world.wait_line(job, PHASE * (phase + 1) - 1)
        if phase < PHASES - 1:
            os.kill(world.job_pid(world.box(job, runs["number"])), signal.SIGUSR1)
    ended = world.wait_end(job, 120)
    assert (ended["state"], ended["exit_code"]) == ("succeeded", 0)
    had = [a for a in ended["attempts"] if a["granted_at"]]
    assert [a["instance_type"] for a in had] == [ASKED, "t3.micro", "t3.small", "t3.micro", "t3.small"]
    assert len(world.moments(job, "near miss")) == 2
    world.assert_identical(job)
    world.assert_one_owner(job)
    told(world, job)
    assert cost(ended["attempts"]) < 0.95 * as_asked(had), "all machines, by the second, against the one that was asked for"
    the_next_run_of_its_name_begins_where_its_peak_has_room(world)


def the_next_run_of_its_name_begins_where_its_peak_has_room(world: Fleet) -> None:
    again = world.submit(20, text=PROGRAM, memory_bytes=5 << 30, **THRESHOLD)
    first = world.wait(lambda: world.show(again)["attempts"], f"a machine for {again}")[0]
    said = world.show(again)["size"]
    assert world.wait_end(again, 120)["state"] == "succeeded"
    assert first["instance_type"] == "t3.small", "1.2 GiB at most, and a little room"
    assert said.startswith("1 earlier run of chain used 1.")
    assert said.endswith(f"GiB at most: it begins on t3.small instead of {ASKED}")
    world.assert_identical(again)


def test_a_job_that_says_what_it_will_need_is_moved_there_before_it_uses_it(world: Fleet) -> None:
    job = world.submit(PHASE + 1, text=FORETELLS + PROGRAM, name="foretells", memory_bytes=1 << 29, **THRESHOLD)
    world.wait(lambda: runs_on(world, job, "t3.small"), f"{job} on t3.small", 240)
    os.kill(world.job_pid(world.box(job, 2)), signal.SIGUSR1)
    assert world.wait_end(job, 120)["state"] == "succeeded"
    assert world.moments(job, "near miss") == []
    assert {m["text"] for m in world.moments(job, "stage")} == {"sort: it will need 1.2 GiB"}
    assert any("the job foretold that it needs more memory" in m["text"] for m in world.moments(job, "planned"))
    world.assert_identical(job)


def runs_on(world: Fleet, job: str, kind: str) -> dict[str, Any] | None:
    """Its newest machine, where it runs on this type with all of its memory."""
    a = next((a for a in reversed(world.show(job)["attempts"]) if a["granted_at"]), None)
    return a if a is not None and (a["state"], a["instance_type"]) == ("running", kind) else None


def told(world: Fleet, job: str) -> None:
    """Timeline, `why` and the usage history say what was done, and memory that was brought is no growth."""
    planned = [m["text"] for m in world.moments(job, "planned")]
    assert any("t3.micro instead of t3.large: in " in text and "use was below its bound" in text for text in planned)
    whys = world.client.get(f"/v1/jobs/{job}/why", last=100)["decisions"]
    assert any("t3.micro instead of t3.small" in done for d in whys for done in d["done"])
    windows = world.client.get(f"/v1/jobs/{job}/usage")["windows"]
    assert max(w["resident_bytes"] for w in windows) > 1150 << 20


def cost(attempts: Sequence[dict[str, Any]]) -> float:
    """In micro-dollars, by the second: machines of a minute are billed for a whole one."""
    return sum(
        a["price_usd_micros_per_hour"] * seconds(a["launched_at"], a["released_at"]) / 3600
        for a in attempts
        if a["launched_at"]
    )


def as_asked(had: Sequence[dict[str, Any]]) -> float:
    """The same on the first type all the time, without the pauses."""
    lasted = seconds(had[0]["launched_at"], had[-1]["released_at"]) - sum(a["pause_seconds"] or 0.0 for a in had)
    return float(had[0]["price_usd_micros_per_hour"] * lasted / 3600)


def seconds(begin: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()
