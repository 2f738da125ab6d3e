"""How long the job has run, over all its machines, and the signals that its time limit, or its user, has the agent send.

Only time counts in which the job's processes ran, and of which the work was kept: a checkpoint's head entry says how much went
into it, and the grant from that checkpoint says so again. What is repeated after a machine was lost counts once.

All this is the agent's own: a limit ends the job although no controller is there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from spotsurfer_wire.messages import Desired, Spec

from spotsurfer_agent.control.state_file import Memory, StateFile
from spotsurfer_agent.ports.engine import Status, WorkloadState

TERM, KILL = "TERM", "KILL"
KEEP_SECONDS = 5.0  # between notes of how long it ran: an agent that takes over counts on from there


@dataclass(frozen=True, slots=True)
class Send:
    """A signal to the job's processes, and what the agent must remember once it is sent."""

    signal: str
    why: str
    remember: dict[str, object]


class RunTime:
    """Counts; `look` is called at each look at the job."""

    def __init__(self, state: StateFile) -> None:
        self._state, self._seen_at, self._here = state, math.nan, state.memory.ran_here

    @property
    def seconds(self) -> float:
        """So long it has run, what went into the checkpoint that it began from included."""
        memory = self._state.memory
        return memory.ran_before + max(self._here - memory.frozen_seconds, 0.0)

    def look(self, now: float, status: Status) -> None:
        """The job was seen so at this time."""
        runs = status.state is WorkloadState.RUNNING and not status.held and status.pending_final is None
        if runs and not math.isnan(self._seen_at):
            self._here += max(now - self._seen_at, 0.0)
        self._seen_at = now if runs else math.nan
        if self._here - self._state.memory.ran_here >= KEEP_SECONDS or (not runs and self._here != self._state.memory.ran_here):
            self._state.update(ran_here=self._here)


def due(spec: Spec, ran: float, memory: Memory, desired: Desired | None) -> Send | None:
    """The next signal that the running job is to get now, or None. Pure."""
    if desired is not None and desired.signal and desired.signal_number > memory.signal:
        return Send(desired.signal, "asked by its user", {"signal": desired.signal_number})
    limit = spec.time_limit_seconds
    if limit is None:
        return None
    if memory.time_up is not None:
        killed = ran - memory.time_up >= spec.kill_wait_seconds
        return Send(KILL, "it did not end at its time limit", {}) if killed else None
    if ran >= limit:
        return Send(TERM, f"its time limit of {limit:g} s is reached", {"time_up": ran})
    warned = memory.warned or memory.ran_before >= limit - spec.warn_seconds > 0
    if spec.warn_signal and not warned and ran >= limit - spec.warn_seconds:
        return Send(spec.warn_signal, f"{limit - ran:.0f} s are left of its time limit", {"warned": True})
    return None
