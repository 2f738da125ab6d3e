"""The agent's report: built from what the agent knows, written when it changes, and from time to time otherwise."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from dataclasses import dataclass

from spotsurfer_wire import clock, gpu_facts, json_codec, object_keys
from spotsurfer_wire.messages import AgentState, NearMiss, Notice, Report, SaveFacts, Warm
from spotsurfer_wire.store.port import ObjectStore
from spotsurfer_wire.usage import Usage

from spotsurfer_agent import __version__
from spotsurfer_agent.control.facts import Facts
from spotsurfer_agent.control.standby import Standing
from spotsurfer_agent.control.state_file import Memory, StateFile, runs_of, used
from spotsurfer_agent.control.state_machine import State, waits_for_memory
from spotsurfer_agent.host.hints import Told
from spotsurfer_agent.ports.engine import Protection, SharedNews
from spotsurfer_agent.restore import compatibility
from spotsurfer_agent.store.traffic import Traffic

RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Extras:
    """What a report holds besides the agent's state and facts."""

    job: str
    instance: str
    memory: Memory
    stage: str
    warm: Warm | None
    protection: Protection
    standing: Standing  # of a standby machine
    told: Told  # what the job reports of itself
    traffic: Traffic  # with the store
    shared: SharedNews
    machine: str = ""  # its token, if it is kept


def build(state: State, facts: Facts, extras: Extras) -> Report:
    """The report of this moment; `sequence` and `at` are set when it is sent."""
    memory, noticed, told = extras.memory, facts.notice, extras.told
    notice = None
    if noticed is not None:
        left = None if noticed.deadline_at is None else max(noticed.deadline_at - facts.now, 0.0)
        notice = Notice(noticed.kind, noticed.id, left)
    return Report(
        job=extras.job,
        attempt=facts.rules.attempt,
        instance=extras.instance,
        agent_version=__version__,
        sequence=0,
        state=state.shown,
        head=facts.head.number if facts.head else 0,
        desired=facts.desired.sequence if facts.desired else 0,
        drain_failed=state.drain_failed,
        frozen=state.held_since is not None,
        lease_seconds=facts.rules.lease_seconds,
        notice=notice,
        last_save=json_codec.known(SaveFacts, memory.last_save) if memory.last_save is not None else None,
        saves=memory.saves,
        frozen_seconds=memory.frozen_seconds,
        restore_seconds=memory.restore_seconds,
        warm=extras.warm,
        fit=facts.fit,
        save_stage=extras.stage or ("memory" if waits_for_memory(state, facts) else ""),
        save_age_seconds=max(facts.now - state.freeze_at, 0.0) if memory.began else None,
        cpu_seconds=used(memory, facts.status.cpu_seconds),
        memory_bytes=facts.status.memory_bytes,
        arriving_bytes=facts.status.arriving_bytes,
        error=state.error or facts.refusal,
        error_kind=state.error_kind or ("store" if facts.refusal else ""),
        protection=extras.protection.rung,
        unprotected=extras.protection.reason,
        unfit=extras.standing.unfit,
        unfit_kind=extras.standing.kind,
        waits=extras.standing.waits,
        processor=compatibility.processor(),
        gpu_driver=gpu_facts.driver_here(),
        hint=told.stage,
        hint_memory_bytes=told.memory_bytes,
        hint_cores=told.cores,
        steps=runs_of(memory),
        partial=memory.partial,
        partial_error=memory.partial_error,
        pressed=facts.pressed,
        kept=facts.status.pending_final or "" if state.name is AgentState.KEEPING else "",
        store_read_bytes=extras.traffic.read,
        store_sent_bytes=extras.traffic.sent,
        store_gets=extras.traffic.gets,
        store_puts=extras.traffic.puts,
        machine=extras.machine,
        near_miss=json_codec.known(NearMiss, memory.near_miss) if memory.near_miss is not None else None,
        writes=list(extras.shared.writes),
        brought_back=extras.shared.brought_back,
    )


def _urgent(report: Report) -> tuple[object, ...]:
    """Values that somebody may be waiting for: a change of them is sent at once."""
    notice = report.notice.id if report.notice else ""
    last = report.last_save.checkpoint if report.last_save else ""
    warm = report.warm.checkpoint if report.warm else ""
    fit = (report.fit.verdict, report.fit.hastened) if report.fit else ()
    return (
        report.state,
        warm,
        fit,
        report.unprotected,
        report.unfit,
        report.waits,
        report.partial,
        len(report.steps),
        report.near_miss is not None,
        report.writes,
        report.brought_back,
        report.pressed,
        report.arriving_bytes is not None,
        report.desired,
        report.drain_failed,
        report.frozen,
        notice,
        last,
        report.error,
        report.instance,
        report.hint_memory_bytes,
        report.hint_cores,
    )


def _small(report: Report) -> tuple[object, ...]:
    """Values that are worth a report, though nobody waits for them."""
    return report.save_stage, report.head, report.hint


class Reporter:
    """Sends the newest report. `want` is for the loop, `send` for a thread of its own: a store may hang."""

    def __init__(
        self,
        store: ObjectStore,
        state: StateFile,
        pace: tuple[float, float],
        now: Callable[[], float],
        first: Callable[[], None],
        usage: Callable[[], Usage | None],
    ) -> None:
        """`pace`: seconds between reports in which something small changed, and between unchanged ones.

        `first` is called once, when a report has arrived; `usage` for each that is sent.
        """
        self._first, self._usage = first, usage
        self._store, self._state, self._pace, self._now = store, state, pace, now
        self._wanted: Report | None = None
        self._sent: Report | None = None
        self._lock, self._retry_at = threading.Lock(), float("-inf")
        self.sent_at = float("-inf")  # when the last report that arrived was begun

    def want(self, report: Report) -> bool:
        """The newest report; True if it is due now."""
        self._wanted = report
        return self._due(report)

    def is_out(self, shown: AgentState) -> bool:
        """Whether the store holds a report with this state, and no later one with another state."""
        sent = self._sent
        return sent is not None and sent.state is shown

    def send(self) -> None:
        """Write the wanted report if it is due. Raises StoreError."""
        with self._lock:
            report = self._wanted
            if report is None or not self._due(report):
                return
            began, number = self._now(), self._state.memory.report_sequence + 1
            told = max(self._state.memory.cpu_told, report.cpu_seconds)
            self._state.update(report_sequence=number, cpu_told=told)
            report = dataclasses.replace(report, sequence=number, usage=self._usage(), at=clock.utc_text())
            self._retry_at = began + RETRY_SECONDS  # a store that fails at once must not be asked in a busy loop
            self._store.put(object_keys.live_key(report.job, report.attempt), json_codec.encode(report))
            if self._sent is None:
                self._first()
            self._sent, self.sent_at, self._retry_at = report, began, began

    def _due(self, report: Report) -> bool:
        small, unchanged = self._pace
        age = self._now() - self.sent_at
        if self._now() < self._retry_at:
            return False
        if self._sent is None or _urgent(report) != _urgent(self._sent) or age >= unchanged:
            return True
        return _small(report) != _small(self._sent) and age >= small
