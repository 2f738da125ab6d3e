"""The job's output over machines that come and go, as a user reads it: each line once, in order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from spotsurfer_wire.head_log import HeadLog
from spotsurfer_wire.messages import AgentState as S
from spotsurfer_wire.messages import HeadKind, Want
from support.agent_world import JOB, Machine, World, commits, running

from spotsurfer.store.job_output import Output, chain

MOVES = 5
LINE_BYTES = 9


def told(world: World) -> list[tuple[int, int]]:
    """Number and machine of all lines, read in pieces of an odd size, as `logs` does."""
    log, output, data = HeadLog(world.store, JOB), Output(world.store), b""
    log.refresh()
    attempts = chain(log.entries, None)
    while piece := output.read(JOB, "out", attempts, len(data), 1000):
        data += piece
    assert len(data) % LINE_BYTES == 0
    return [(int(line[:7]), int(line[7:])) for line in data.split()]


def in_order(world: World) -> int:
    """How many lines there are: each once, in order, and none that a loss undid where its machine's successor wrote another."""
    lines = told(world)
    assert [number for number, _ in lines] == list(range(len(lines)))
    assert [machine for _, machine in lines] == sorted(machine for _, machine in lines)
    for head in world.heads():
        if head.kind is HeadKind.GRANT and head.checkpoint is not None:
            begin = world.log(head.epoch)[0] // LINE_BYTES
            assert all(machine >= head.epoch for _, machine in lines[begin:]) or not world.log(head.epoch)[1]
    return len(lines)


def marked(world: World, attempt: int, **shim: float) -> Machine:
    """A machine whose lines say that they are its own: what is printed anew after a loss need not be the same again."""
    return running(world, attempt, mark=b"%07d" + str(attempt).encode() + b"\n", **shim)


def work_for(world: World, seconds: int) -> None:
    for _ in range(seconds):
        world.turn()


@pytest.mark.parametrize("seed", range(8))
def test_five_moves_and_one_loss(tmp_path: Path, seed: int) -> None:
    chance, world = random.Random(seed), World(tmp_path, checkpoint_interval_seconds=20.0)
    machine = marked(world, 1)
    lost_at = chance.randint(1, MOVES)
    for attempt in range(1, MOVES + 2):
        work_for(world, chance.randint(5, 60))
        if chance.random() < 0.5:
            machine.boot()  # the agent was killed and is there again
            world.until(lambda machine=machine: machine.state is S.RUNNING)
        in_order(world)
        if attempt == lost_at:
            world.until(lambda attempt=attempt: any(h.epoch == attempt for h in commits(world)))
            work_for(world, 7)
            world.machines.remove(machine)  # without a word
        else:
            world.want(attempt, Want.DRAIN, 1)
            world.until(lambda machine=machine: bool(machine.agent and machine.agent.over))
        left = {"length": machine.shim.worked + 50.0} if attempt == MOVES + 1 else {}
        machine = marked(world, attempt + 1, **left)
    world.until(lambda: bool(machine.agent and machine.agent.over))
    done = world.heads()[-1].done
    assert done is not None
    assert in_order(world) == done.log["out"] // LINE_BYTES
    assert len(world.machines) == MOVES + 1, "six of seven came to their end in the open"
