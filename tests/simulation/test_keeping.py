"""A move whose source keeps the job frozen: whoever dies at whichever step, the job has one owner and loses nothing.

The steps are the writes of agents and controller into the store, from the order to drain until the job runs again: between two
of them nobody learns anything. At each of them one side is killed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from simulation.agents import Agent
from simulation.chances import calm
from simulation.objects import WRITES
from simulation.trouble import mend
from simulation.virtual import Crash
from simulation.world import LIMITS, World
from spotsurfer_agent.ports.engine import EngineError
from spotsurfer_wire.head_log import HeadLog
from spotsurfer_wire.messages import Head, HeadKind

from spotsurfer.model.job import AttemptState as A
from spotsurfer.model.job import JobId

JOB = JobId("job-0")
WORK = 100
BACK_SECONDS = 10.0  # from a restore that fails until the job runs at its source again
SOURCE, TARGET = 1, 2
STEPS = 40  # writes until the job runs again, whichever way


class Move:
    """One job, which its user moves from its first machine to a second one, on which its restore fails if `kind` says how."""

    def __init__(self, patch: pytest.MonkeyPatch, kind: str = "", **limits: float) -> None:
        self.world = World(1, jobs=1, work=WORK, chances=calm(), limits=replace(LIMITS, **limits))
        self.world.until_running()
        self.world.run(limit=5)
        self.failed_at: float | None = None
        self.steps = 0
        self._kind, self._real = kind, Agent.trip
        if kind:
            patch.setattr(Agent, "trip", lambda agent, point: self._trip(agent, point))
        self.world.commands.move(JOB, None, None)

    def _trip(self, agent: Agent, point: str) -> None:
        if point == "restore" and agent.number == TARGET:
            self.failed_at = self.now
            raise EngineError(self._kind, "a chunk is damaged")
        self._real(agent, point)

    @property
    def now(self) -> float:
        return self.world.clock.now().timestamp()

    def agent(self, number: int) -> Agent | None:
        """Of that attempt, while its machine lives."""
        alive = (m.agent for m in self.world.cloud.machines.values() if m.gone_at is None)
        return next((a for a in alive if a is not None and a.number == number), None)

    def runs(self, number: int) -> bool:
        agent = self.agent(number)
        return agent is not None and agent.executing

    def state(self, number: int) -> A | None:
        return next((a.state for a in self.world.attempts[JOB] if a.number == number), None)

    def until(self, seen: Callable[[], bool], limit: int = 120) -> None:
        for _ in range(limit):
            if seen():
                return
            self.world.run(limit=1)
        raise AssertionError(f"it never came to that: {self.world.attempts[JOB]}")

    def heads(self) -> list[Head]:
        log = HeadLog(self.world.store, JOB)
        log.refresh()
        return log.entries

    def end(self) -> None:
        """The job comes to its end, and all that must hold did."""
        mend(self.world.store)
        assert self.world.run() == "ok"
        self.world.check_end()
        ended = self.heads()[-1]
        assert ended.kind is HeadKind.DONE and ended.cpu_seconds == WORK


def given_back(move: Move) -> list[Head]:
    grants = [e for e in move.heads() if e.kind is HeadKind.GRANT]
    return [e for before, e in pairwise(grants) if e.epoch < before.epoch]


@pytest.mark.parametrize("kind", ["restore", "store", "refused"])
def test_a_restore_that_fails_leaves_the_job_where_it_was(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    move = Move(monkeypatch, kind)
    move.until(lambda: move.failed_at is not None)
    assert move.agent(SOURCE) is not None
    worked = move.agent(SOURCE).work  # type: ignore[union-attr]
    move.until(lambda: move.runs(SOURCE))
    assert move.failed_at is not None
    assert move.now - move.failed_at <= BACK_SECONDS
    assert move.agent(SOURCE).work >= worked  # type: ignore[union-attr]
    assert [e.epoch for e in given_back(move)] == [SOURCE]
    move.end()
    assert move.world.cloud.launches == 2, "nobody is bought in vain"


def test_a_move_that_works_releases_its_source_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    move = Move(monkeypatch)
    move.until(lambda: move.state(SOURCE) is A.DRAINED)
    move.until(lambda: move.runs(TARGET))
    move.until(lambda: move.agent(SOURCE) is None, limit=5)
    move.end()
    assert not given_back(move)


def test_a_target_that_is_gone_leaves_the_job_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    move = Move(monkeypatch)
    move.until(lambda: move.state(TARGET) is A.RESTORING)
    target = next(m for m in move.world.cloud.machines.values() if m.agent is not None and m.agent.number == TARGET)
    move.world.cloud.end(target)
    gone_at = move.now
    move.until(lambda: move.runs(SOURCE))
    assert move.now - gone_at <= BACK_SECONDS
    move.end()


def test_it_is_kept_no_longer_than_the_setting_says(monkeypatch: pytest.MonkeyPatch) -> None:
    move = Move(monkeypatch, keep_seconds=10.0)
    move.until(lambda: move.state(TARGET) is A.RESTORING)
    agent = move.agent(TARGET)
    assert agent is not None
    monkeypatch.setattr(type(agent), "executing", property(lambda _: False))
    agent.machine.registry_down, agent.root_at = True, float("inf")
    move.until(lambda: move.agent(SOURCE) is None, limit=60)


def test_nothing_is_kept_where_the_setting_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    move = Move(monkeypatch, "restore", keep_seconds=0.0)
    move.end()
    assert not given_back(move)


# ---------------------------------------------------------------- killed at every step


def machine_of(number: int) -> Callable[[Move], None]:
    def end(move: Move) -> None:
        if (agent := move.agent(number)) is not None:
            move.world.cloud.end(agent.machine)

    return end


def agent_of(number: int) -> Callable[[Move], None]:
    def die(move: Move) -> None:
        if (agent := move.agent(number)) is not None:
            agent.die()
            agent.cut = 0

    return die


def controller(_: Move) -> None:
    """It died at the write itself, or with the next thing that it did."""


VICTIMS = {
    "source's agent": agent_of(SOURCE),
    "source": machine_of(SOURCE),
    "target's agent": agent_of(TARGET),
    "target": machine_of(TARGET),
    "controller": controller,
}
FAILS = {"works": "", "fails": "restore"}


class Killer:
    """Waits for the write of that number after the target was ready; whom it hits does nothing more."""

    def __init__(self, move: Move, step: int, victim: str) -> None:
        self.move, self.left, self.victim, self.is_due = move, step, victim, False
        move.world.store.after, move.world.store.before = self.written, self.called

    def called(self, who: str, _verb: str, _key: str) -> None:
        if self.is_due and self.victim == "controller" and who == "controller":
            mend(self.move.world.store)
            raise Crash

    def written(self, who: str, verb: str, key: str) -> None:
        if self.is_due or verb not in WRITES or not key.startswith(("jobs/", "live/")) or "/log/" in key or not self._moves():
            return
        self.left -= 1
        if self.left < 0:
            self.is_due = True
            number = {"source": SOURCE, "target": TARGET}.get(self.victim.partition("'")[0])
            if number is not None and (agent := self.move.agent(number)) is not None:
                agent.cut = 10**6
            self.called(who, verb, key)

    def _moves(self) -> bool:
        return self.move.state(TARGET) not in (None, A.PLANNED, A.REQUESTED, A.BOOTING)


def killed(patch: pytest.MonkeyPatch, kind: str, step: int, victim: str) -> bool:
    """One move with a victim at that step, which ends well; False where it has fewer steps."""
    move = Move(patch, kind)
    killer = Killer(move, step, victim)
    for _ in range(60):
        move.world.run(limit=1)
        if killer.is_due:
            VICTIMS[victim](move)
            move.end()
            return True
    return False


@pytest.mark.parametrize("fails", FAILS)
@pytest.mark.parametrize("victim", VICTIMS)
def test_whoever_dies_at_whichever_step(victim: str, fails: str) -> None:
    """Every tenth step, each victim's own; all of them in the slow test."""
    for step in range(list(VICTIMS).index(victim), 30, 10):
        with pytest.MonkeyPatch.context() as patch:
            assert killed(patch, FAILS[fails], step, victim)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("fails", FAILS)
@pytest.mark.parametrize("victim", VICTIMS)
def test_whoever_dies_at_every_step(victim: str, fails: str) -> None:
    for step in range(STEPS):
        with pytest.MonkeyPatch.context() as patch:
            assert killed(patch, FAILS[fails], step, victim)
