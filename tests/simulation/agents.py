"""Virtual machines and what runs on them: the agents that the real controller meets in the simulation."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from simulation.chances import Chances
from simulation.objects import Objects
from spotsurfer_agent import protocol
from spotsurfer_agent.fit import Fit
from spotsurfer_agent.headlog import Appended, HeadLog
from spotsurfer_agent.protocol import AgentState, Desired, Done, Head, HeadKind, Notice, Report, SaveFacts, Want, Warm
from spotsurfer_agent.store import StoreError

from spotsurfer.ports.provider import LaunchPlan


@dataclass
class Machine:
    """An instance and the agent on it."""

    id: str
    plan: LaunchPlan
    born: datetime
    boots_after: float
    sure: bool
    visible_after: float
    gone_at: datetime | None = None
    reclaimed: bool = False
    registry_down: bool = False
    agent: Agent | None = field(default=None)


NOTICE_SECONDS = 12
LEASE_SECONDS = 8.0
REPORT_SECONDS = 2.0
SAVE_EVERY = 25
RESERVE_SECONDS = 9.0  # the longest final save, and a bit
SETUP_SECONDS = 40
OLD_BASE_SECONDS = 12.0  # of work since the newest checkpoint: a live save before a move pays


class Agent:
    """Does what the real one does, in steps of one second."""

    def __init__(self, machine: Machine, store: Objects, chances: Chances, rand: random.Random, work: int) -> None:
        self.machine, self.store, self.chances, self.rand, self.total = machine, store, chances, rand, work
        self.job = machine.plan.tags["spotsurfer:job"]
        self.number = int(machine.plan.tags["spotsurfer:attempt"])
        self.log = HeadLog(store, self.job)
        self.state, self.busy, self.cut, self.sequence = AgentState.STANDBY, 0, 0, 0
        self.work = 0.0
        self.setup = SETUP_SECONDS if self.job.endswith("1") else 0  # of work in a step that is not protected
        self.heard, self.told, self.held = 0.0, 0.0, False
        self.told_last: object = None
        self.noticed_at: float | None = None
        self.now = 0.0
        self.desired: Desired | None = None
        self.failed, self.error, self.last_saved = 0, "", 0.0
        self.draining_for = 0
        self.error_kind = ""
        self.restored = 0.0  # seconds that the restore took
        self.arriving = 0  # looks until all memory is there
        self.warm: str | None = None
        self.wanted: str | None = None
        self.fetching = 0
        self.root = rand.randint(0, 4)  # looks until what the job brings is here
        self.saves, self.saved = 0, SaveFacts("", 0, "live", 0, 0, 0.0, 0.0)

    @property
    def executing(self) -> bool:
        """The job's processes make progress here."""
        alive = self.state in (AgentState.RUNNING, AgentState.DRAINING) and self.machine.gone_at is None
        return alive and not self.held

    def step(self, now: float) -> None:
        self.now = now
        # Waiters wait seconds, holders minutes: cut more often, they meet it as often.
        often = 5 if self.state is AgentState.STANDBY else 1
        if self.cut == 0 and self.rand.random() < self.chances.cut * often and not self.machine.sure:
            self.cut = self.rand.randint(5, 40)
        self.cut = max(self.cut - 1, 0)
        reachable = self.cut == 0 and self._reaches(self._contact)
        if now - min(self.heard, self.told) >= LEASE_SECONDS:
            self.held = True
        elif reachable:
            self.held = False
        if self.executing:
            self._work_on()
        if reachable:
            self._reaches(self._act)
            self._reaches(self._report)

    def _reaches(self, what: Callable[[], None]) -> bool:
        """Whether the store let it be done, at the second try at least: clients of stores try again by themselves."""
        for _ in range(2):
            try:
                what()
            except StoreError:
                continue
            return True
        return False

    def _report(self) -> None:
        """At once when there is news, else at times of its own: a third of the lease apart, or a bit less."""
        words = self._words()
        news = replace(words, sequence=0, cpu_seconds=0.0, save_age_seconds=None, restore_seconds=None, notice=None)
        if self.told_last == (news, self.noticed_at) and self.now - self.told < REPORT_SECONDS:
            return
        self.sequence += 1
        self.store.put(protocol.live_key(self.job, self.number), protocol.encode(replace(words, sequence=self.sequence)))
        self.told, self.told_last = self.now, (news, self.noticed_at)

    def _work_on(self) -> None:
        """A second of it."""
        self.work = min(self.work + 1, self.total)

    def _contact(self) -> None:
        head = self.log.refresh()
        data = self.store.get(protocol.desired_key(self.job, self.number))
        self.desired = protocol.decode(Desired, data) if data else None
        self.heard = self.now
        holding = self.state in (AgentState.RESTORING, AgentState.RUNNING, AgentState.DRAINING)
        if holding and head is not None and (head.epoch != self.number or head.kind is HeadKind.DONE):
            self.state = AgentState.FENCED

    def _act(self) -> None:
        act = {
            AgentState.STANDBY: self._standby,
            AgentState.RESTORING: self._restoring,
            AgentState.RUNNING: self._running,
            AgentState.DRAINING: self._draining,
        }.get(self.state)
        if act is not None and not self._unwhole():
            act()

    def _standby(self) -> None:
        head = self.log.newest
        self.root -= self.root > 0 and not self.machine.registry_down
        if head is not None and head.epoch == self.number and head.kind is HeadKind.GRANT:
            self.state, self.busy, self.work = AgentState.RESTORING, self.rand.randint(0, 5), head.cpu_seconds
            self.last_saved = self.work
        elif head is not None and head.checkpoint != self.wanted:
            self.wanted, self.fetching = head.checkpoint, self.rand.randint(0, 12)
        self.fetching = max(self.fetching - 1, 0)
        if self.fetching == 0:
            self.warm = self.wanted

    def _restoring(self) -> None:
        self.busy -= 1
        self.restored += 1
        if self.busy <= 0:
            broken = self.rand.random() < self.chances.restore_fails
            self.state = AgentState.BROKEN if broken else AgentState.RUNNING
            self.error = "the restore failed" if broken else ""
            self.error_kind = self.rand.choice(["restore", "store", "refused", "refused"]) if broken else ""
            self.arriving = 0 if broken else self.rand.randint(0, 6)

    def _unwhole(self) -> bool:
        self.arriving = max(self.arriving - 1, 0)
        if self.arriving and self.rand.random() < self.chances.image_bad:
            self.state, self.error, self.error_kind = AgentState.BROKEN, "a chunk is missing", "restore"
        return self.state is AgentState.BROKEN

    def _running(self) -> None:
        want = self.desired
        asked = want is not None and want.want is Want.DRAIN and want.sequence != self.failed
        if self.work >= self.total:
            self._done()
        elif asked or self._time_to_go():
            self.state, self.busy = AgentState.DRAINING, self.rand.randint(2, 8)
            self.draining_for = want.sequence if asked and want else 0
        elif self.unprotected:
            return
        elif self.work - self.last_saved >= self._every() or (want is not None and want.save_at_least > self._sequence()):
            self._commit(final=False)

    def _every(self) -> float:
        told = self.desired.save_every_seconds if self.desired is not None else None
        return SAVE_EVERY if told is None else told

    @property
    def unprotected(self) -> bool:
        """What it does now begins again elsewhere."""
        return self.work < self.setup

    def _time_to_go(self) -> bool:
        """With a notice: at once where no save was measured here, else when the time gets short."""
        if self.noticed_at is None:
            return False
        return self.saves == 0 or self._left() <= RESERVE_SECONDS

    def _left(self) -> float:
        assert self.noticed_at is not None
        return NOTICE_SECONDS - (self.now - self.noticed_at)

    def _draining(self) -> None:
        self.busy -= 1
        withdrawn = self.noticed_at is None and (self.desired is None or self.desired.want is Want.RUN)
        if withdrawn:
            self.state = AgentState.RUNNING
        elif self.work >= self.total:
            self._done()
        elif self.busy <= 0 and self.noticed_at is None and self.rand.random() < self.chances.save_fails:
            self.state, self.failed, self.error = AgentState.RUNNING, self.draining_for, "the final save failed"
        elif self.busy <= 0 and self._commit(final=True):
            self.state = AgentState.DRAINED

    def _sequence(self) -> int:
        return self.log.newest.sequence if self.log.newest else 0

    def _entry(self, kind: HeadKind, **changes: object) -> Head:
        newest = self.log.newest
        assert newest is not None
        values = {
            "number": newest.number + 1,
            "kind": kind,
            "epoch": self.number,
            "checkpoint": newest.checkpoint,
            "sequence": newest.sequence,
            "final": False,
            "done": None,
            "cpu_seconds": self.work,
            "nonce": f"{self.number}-{newest.number + 1}-{self.rand.random()}",
            "at": "",
        }
        return Head(**{**values, **changes})  # type: ignore[arg-type]

    def _append(self, head: Head) -> bool:
        won = self.log.append(head) is Appended.OURS
        if not won:
            self.state = AgentState.FENCED
        return won

    def _commit(self, final: bool) -> bool:
        newest = self.log.newest
        if final and self.unprotected and newest is not None:
            return self._append(self._entry(HeadKind.COMMIT, final=True, cpu_seconds=newest.cpu_seconds))
        sequence = self._sequence() + 1
        name = protocol.checkpoint_id(self.number, sequence)
        self.last_saved, self.saves = self.work, self.saves + 1
        won = self._append(self._entry(HeadKind.COMMIT, checkpoint=name, sequence=sequence, final=final))
        self.saved = SaveFacts(name, sequence, "final" if final else "live", 10, 5, 0.1, 1.0) if won else self.saved
        return won

    def _done(self) -> None:
        code = 7 if self.rand.random() < self.chances.command_fails else 0
        if self._append(self._entry(HeadKind.DONE, done=Done(code, "exited"))):
            self.state = AgentState.FINISHED

    def _words(self) -> Report:
        """The next report."""
        notice = None if self.noticed_at is None else Notice("interruption", "n1", max(self._left(), 0.0))
        gain = 3.0 if self.work - self.last_saved > OLD_BASE_SECONDS else 0.0
        unfit, kind = self._unfit()
        return Report(
            job=self.job,
            attempt=self.number,
            instance=self.machine.id,
            agent_version="0",
            sequence=self.sequence,
            state=self.state,
            head=self.log.newest.number if self.log.newest else 0,
            desired=self.desired.sequence if self.desired else 0,
            drain_failed=self.failed,
            last_save=self.saved if self.saved.checkpoint else None,
            notice=notice,
            warm=Warm(self.warm, 0, 0) if self.state is AgentState.STANDBY else None,
            fit=Fit(1.0, 1, 5.0, 10.0, "fits", RESERVE_SECONDS, gain, 5.0, 1.0) if self.saves else None,
            unfit=unfit,
            unfit_kind=kind,
            waits="the registry can't be reached" if self.state is AgentState.STANDBY and self.root else "",
            error=self.error,
            error_kind=self.error_kind,
            cpu_seconds=self.work,
            saves=self.saves,
            frozen_seconds=0.1 * self.saves,
            save_age_seconds=self.work - self.last_saved,
            restore_seconds=self.restored,
            protection="none" if self.unprotected else "criu",
        )

    def _unfit(self) -> tuple[str, str]:
        """Standing by, some machines find that they could not go on with the newest checkpoint, or that none could."""
        head = self.log.newest
        if self.state is not AgentState.STANDBY or head is None or head.checkpoint is None:
            return "", ""
        if self.rand.random() < self.chances.unfit:
            return "another processor", ""
        return ("the image is gone", "image") if self.rand.random() < self.chances.useless else ("", "")
