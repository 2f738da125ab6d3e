"""The job's output over machines that come and go, as a user reads it: each line once, in order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from spotsurfer_agent.headlog import HeadLog
from spotsurfer_agent.protocol import AgentState as S
from spotsurfer_agent.protocol import Want
from support.agent_world import JOB, Machine, World, commits, running

from spotsurfer.store.output import Output, chain

MOVES = 5
LINE_BYTES = 9


def told(world: World) -> list[int]:
    """The numbers of all lines, read in pieces of an odd size, as `logs` does."""
    log, output, data = HeadLog(world.store, JOB), Output(world.store), b""
    log.refresh()
    attempts = chain(log.entries, None)
    while piece := output.read(JOB, "out", attempts, len(data), 1000):
        data += piece
    assert len(data) % LINE_BYTES == 0
    return [int(line) for line in data.split()]


def work_for(world: World, seconds: int) -> None:
    for _ in range(seconds):
        world.turn()


@pytest.mark.parametrize("seed", range(8))
def test_five_moves_and_one_loss(tmp_path: Path, seed: int) -> None:
    chance, world = random.Random(seed), World(tmp_path, checkpoint_interval_seconds=20.0)
    machine: Machine = running(world, 1)
    lost_at = chance.randint(1, MOVES)
    for attempt in range(1, MOVES + 2):
        work_for(world, chance.randint(5, 60))
        if chance.random() < 0.5:
            machine.boot()  # the agent was killed and is there again
            world.until(lambda machine=machine: machine.state is S.RUNNING)
        assert told(world) == list(range(len(told(world)))), f"while attempt {attempt} runs"
        if attempt == lost_at:
            world.until(lambda attempt=attempt: any(h.epoch == attempt for h in commits(world)))
            work_for(world, 7)
            world.machines.remove(machine)  # without a word
        else:
            world.want(attempt, Want.DRAIN, 1)
            world.until(lambda machine=machine: bool(machine.agent and machine.agent.over))
        left = {"length": machine.shim.worked + 50.0} if attempt == MOVES + 1 else {}
        machine = running(world, attempt + 1, **left)
    world.until(lambda: bool(machine.agent and machine.agent.over))
    done = world.heads()[-1].done
    assert done is not None
    assert told(world) == list(range(done.log["out"] // LINE_BYTES))
    assert len(world.machines) == MOVES + 1, "six of seven came to their end in the open"
