"""Steps, output and results of jobs whose machines go, with real agents in boxes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from spotsurfer_providers.local import manual_control
from support.fleet import MARKS, PROGRAM, Fleet, Json, fleet

pytestmark = [*MARKS]
MOVES = 5
SETUP = "for i in $(seq 30); do echo setup $i; sleep 0.2; done; date +%s%N > setup.stamp"
FINISH = 'echo finish $SPOTSURFER_EXIT_CODE $SPOTSURFER_STEP; sha256sum < result.txt | cut -d" " -f1 > sum.txt'
# Each line is numbered by the job itself, which prints until it is told to end.
NUMBERED = """
import os, sys, time
n = 0
while not os.path.exists("enough"):
    print("line", n, flush=True)
    if n % 10 == 0:
        print("tenth", n, file=sys.stderr, flush=True)
    n += 1
    time.sleep(0.02)
print("end", n, flush=True)
open("count.txt", "w").write(str(n))
"""
# Every line goes to the other stream than the one before, sometimes two follow each other.
ALTERNATING = """
import os, sys, time
n = 0
while not os.path.exists("enough"):
    print("line", n, file=sys.stderr if n % 3 == 1 else sys.stdout, flush=True)
    n += 1
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("steps"), interval=2) as made:
        yield made


def three_steps(world: Fleet, lines: int, code: int = 0) -> str:
    main = ["/usr/bin/python3", "program.py", str(lines), "0.05", str(code)]
    steps = [
        {"name": "setup", "command": ["sh", "-c", SETUP], "protect": False},
        {"name": "main", "command": main},
        {"name": "finish", "command": ["sh", "-c", FINISH], "always": True},
    ]
    return world.submit(lines, text=PROGRAM, command=main, steps=steps)


def running_in(world: Fleet, job: str, step: str) -> None:
    def runs() -> bool:
        steps = world.show(job)["steps"]
        return bool(steps) and steps[-1]["name"] == step and steps[-1]["exit_code"] is None

    world.wait(runs, f"{job} in its step {step}")


def of_step(world: Fleet, job: str, step: Json) -> list[str]:
    begin, end = step["log"].get("out", 0), step["log_end"]["out"]
    data = world.client.data(f"/v1/jobs/{job}/log/out", offset=begin, limit=end - begin)
    return data.decode().splitlines()


def result(world: Fleet, job: str, name: str) -> bytes:
    return b"".join(world.client.download(f"/v1/jobs/{job}/outputs/{name}"))


def test_a_reclaim_in_setup_begins_again_and_one_in_main_goes_on(world: Fleet) -> None:
    job = three_steps(world, 200)
    world.wait_line(job, 0)
    manual_control.reclaim(world.data, world.box(job, 1), 20)
    world.wait_state(job, "running", 2)
    assert world.show(job)["attempts"][1]["from_checkpoint"] is None
    running_in(world, job, "main")
    world.wait_line(job, 31)
    assert world.output(job).splitlines()[:30] == [f"setup {i}" for i in range(1, 31)]
    world.wait_line(job, 60)
    world.client.post(f"/v1/jobs/{job}/move", {})
    moved = world.wait_state(job, "running", 3)
    assert moved["from_checkpoint"] is not None
    ended = world.wait_end(job)
    assert (ended["state"], ended["exit_code"]) == ("succeeded", 0)
    setup, main, finish = ended["steps"]
    assert [s["exit_code"] for s in ended["steps"]] == [0, 0, 0]
    assert of_step(world, job, setup) == [f"setup {i}" for i in range(1, 31)]
    assert len(of_step(world, job, main)) == 200
    assert of_step(world, job, finish) == ["finish 0 finish"]
    assert main["cpu_seconds"] > 0
    digest = hashlib.sha256(result(world, job, "result.txt")).hexdigest()
    assert result(world, job, "sum.txt").decode().strip() == digest
    listed = world.client.get(f"/v1/jobs/{job}/outputs")["outputs"]
    assert {f["path"]: f["sha256"] for f in listed}["result.txt"] == digest
    told = [m["text"] for m in world.moments(job, "step")]
    assert sum(1 for text in told if text.startswith("finish began")) <= 1, "it may begin and end between two reports"


@pytest.mark.slow
def test_a_main_that_fails_is_tidied_up_after(world: Fleet) -> None:
    job = three_steps(world, 20, code=7)
    ended = world.wait_end(job)
    assert (ended["state"], ended["exit_code"]) == ("failed", 7)
    assert [(s["name"], s["exit_code"]) for s in ended["steps"]] == [("setup", 0), ("main", 7), ("finish", 0)]
    assert of_step(world, job, ended["steps"][2]) == ["finish 7 finish"]


@pytest.mark.slow
def test_an_agent_killed_between_two_steps_goes_on(world: Fleet) -> None:
    job = three_steps(world, 40)
    running_in(world, job, "main")
    box = world.box(job, 1)
    world.wait_line(job, 60)
    world.kill(world.agent_pid(box))  # it comes back in a moment: main ends about now
    ended = world.wait_end(job)
    assert [s["exit_code"] for s in ended["steps"]] == [0, 0, 0]
    assert ended["moves"] == 0
    assert len(of_step(world, job, ended["steps"][1])) == 40


@pytest.mark.slow
def test_lines_appear_once_each_and_in_order_over_five_moves_and_a_loss(world: Fleet) -> None:
    job = world.submit(0, text=NUMBERED, command=["/usr/bin/python3", "program.py"])
    for move in range(1, MOVES + 1):
        world.wait_state(job, "running", move)
        world.wait_line(job, len(world.output(job).splitlines()) + 10)
        world.client.post(f"/v1/jobs/{job}/move", {})
    world.wait_state(job, "running", MOVES + 1)
    saves = len(world.moments(job, "saved"))
    world.wait(lambda: len(world.moments(job, "saved")) > saves, "a checkpoint on the last machine")
    world.wait_line(job, len(world.output(job).splitlines()) + 60)  # work that the loss undoes
    manual_control.reclaim(world.data, world.box(job, MOVES + 1), 0)
    world.wait_state(job, "running", MOVES + 2)
    world.wait_line(job, len(world.output(job).splitlines()) + 10)
    box = world.box(job, MOVES + 2)
    (world.root(box) / "var/lib/spotsurfer/job/scratch/work/enough").touch()
    assert world.wait_end(job)["moves"] == MOVES + 1
    count = int(result(world, job, "count.txt"))
    assert world.output(job).splitlines() == [*(f"line {n}" for n in range(count)), f"end {count}"]
    errors = world.client.data(f"/v1/jobs/{job}/log/err", offset=0, limit=1 << 20).decode()
    assert errors.splitlines() == [f"tenth {n}" for n in range(0, count, 10)]
    world.assert_one_owner(job)


def test_both_streams_come_in_the_order_in_which_the_job_wrote_them_over_a_move(world: Fleet) -> None:
    job = world.submit(0, text=ALTERNATING, command=["/usr/bin/python3", "program.py"])
    world.wait_state(job, "running", 1)
    world.wait_line(job, 30)
    world.client.post(f"/v1/jobs/{job}/move", {})
    world.wait_state(job, "running", 2)
    world.wait_line(job, len(world.output(job).splitlines()) + 30)
    (world.root(world.box(job, 2)) / "var/lib/spotsurfer/job/scratch/work/enough").touch()
    world.wait_end(job)
    parts, told = world.client.framed(f"/v1/jobs/{job}/log")
    lines = b"".join(data for _, data in parts).decode().splitlines()
    assert lines == [f"line {n}" for n in range(len(lines))]
    assert len({head["stream"] for head, _ in parts}) == 2
    assert all(head["recorded"] and head["seconds"] for head, _ in parts)
    assert told["ended"]
    for stream in ("out", "err"):
        keys = [p.name for p in (world.data / "store/jobs" / job / "log").glob(f"*/{stream}-*")]
        assert len(keys) < 20, "pieces were merged"
    last, _ = world.client.framed(f"/v1/jobs/{job}/log", tail=5)
    assert b"".join(data for _, data in last).decode().splitlines() == lines[-5:]


def test_what_is_there_so_far(world: Fleet, tmp_path: Path) -> None:
    job = world.submit(200)
    world.wait_line(job, 20)
    number = world.client.post(f"/v1/jobs/{job}/partials")["number"]

    def there() -> Json | None:
        found: Json = world.client.get(f"/v1/jobs/{job}/partials/{number}")
        return found if found["done"] else None

    told = world.wait(there, "what the job has written so far")
    assert [f["path"] for f in told["outputs"]] == ["child.txt"], "result.txt comes at the end"
    data = b"".join(world.client.download(f"/v1/jobs/{job}/partials/{number}/child.txt"))
    assert hashlib.sha256(data).hexdigest() == told["outputs"][0]["sha256"]
    lines = data.decode().splitlines()
    assert lines == [str(2 * i) for i in range(len(lines))]
    assert len(lines) > 20
    (tmp_path / "child.txt").write_bytes(data)
    assert world.show(job)["phase"] == "running"
    world.wait_end(job)
    world.assert_identical(job)
